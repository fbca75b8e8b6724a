// The manifest as text. Its last key is the digest of the text itself with 32 zeros in the digest's
// place, so that every byte of the file is covered and the file stays plain JSON.
#include <nlohmann/json.hpp>

#include "tautline/base/error.h"
#include "tautline/train/checkpoint/checkpoint.h"
#include "tautline/train/checkpoint/digest.h"

namespace tautline::train {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::string_view kFormatName = "tautline checkpoint";
constexpr std::string_view kDigestKey = "\"digest\": \"";
const std::string kNoDigest(32, '0');

DataType type_from(const std::string& name) {
  for (DataType type : {DataType::kF32, DataType::kBf16, DataType::kF16, DataType::kI64,
                        DataType::kI32, DataType::kU8})
    if (name_of(type) == name) return type;
  throw json::other_error::create(501, "unknown dtype " + name, nullptr);
}

Ordered tensor_json(const TensorEntry& tensor) {
  Ordered out = {{"name", tensor.name},
                 {"dtype", name_of(tensor.type)},
                 {"shape", tensor.shape},
                 {"layout", tensor.layout.replicated ? "replicated" : "rows"}};
  if (!tensor.layout.replicated) {
    out["rows"] = tensor.layout.rows;
    out["offset"] = tensor.layout.offset;
    out["stride"] = tensor.layout.stride;
  }
  return out;
}

TensorEntry tensor_from(const json& in) {
  TensorEntry tensor{in.at("name"), type_from(in.at("dtype")), in.at("shape"), RowLayout::whole()};
  if (in.at("layout") == "rows")
    tensor.layout = RowLayout::dealt(in.at("rows"), in.at("offset"), in.at("stride"));
  return tensor;
}

Ordered file_json(const FileEntry& file) {
  Ordered tensors = Ordered::array();
  for (const TensorEntry& tensor : file.tensors) tensors.push_back(tensor_json(tensor));
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"digest", file.digest},
          {"tensors", std::move(tensors)}};
}

FileEntry file_from(const json& in) {
  FileEntry file{in.at("name"), in.at("bytes"), in.at("digest"), {}};
  for (const json& tensor : in.at("tensors")) file.tensors.push_back(tensor_from(tensor));
  return file;
}

// A line a tensor: a manifest is read by people too.
std::string files_text(const std::vector<FileEntry>& files) {
  std::string text;
  for (const FileEntry& file : files) {
    Ordered head = file_json({file.name, file.bytes, file.digest, {}});
    head.erase("tensors");
    std::string line = head.dump();
    line.pop_back();
    text += (text.empty() ? "\n  " : ",\n  ") + line + ",\"tensors\":[";
    for (size_t t = 0; t < file.tensors.size(); ++t)
      text += (t == 0 ? "\n   " : ",\n   ") + tensor_json(file.tensors[t]).dump();
    text += "]}";
  }
  return text;
}

Ordered metrics_json(const MetricsState& state) {
  return {{"metric", state.metric},
          {"best", state.best ? Ordered(*state.best) : Ordered(nullptr)},
          {"best_step", state.best_step},
          {"evaluations_since_best", state.evaluations_since_best}};
}

MetricsState metrics_from(const json& in) {
  MetricsState state{in.at("metric"), std::nullopt, in.at("best_step"),
                     in.at("evaluations_since_best")};
  if (!in.at("best").is_null()) state.best = in.at("best").get<double>();
  return state;
}

Manifest manifest_from(const json& in) {
  Manifest manifest;
  manifest.format = in.at("version");
  manifest.step = in.at("step");
  manifest.epoch = in.at("epoch");
  const json& cursor = in.at("cursor");
  manifest.cursor = {cursor.at("epoch"), cursor.at("step_in_epoch"), cursor.at("step")};
  manifest.ranks = in.at("ranks");
  manifest.seed = in.at("seed");
  manifest.model_digest = in.at("model_digest");
  manifest.metrics = metrics_from(in.at("metrics"));
  manifest.extra = in.at("extra").get<TextMap>();
  manifest.plan = in.at("plan");
  for (const json& file : in.at("files")) manifest.files.push_back(file_from(file));
  return manifest;
}

}  // namespace

std::string to_text(const FileEntry& entry) { return file_json(entry).dump(); }
FileEntry file_entry_from_text(const std::string& text) { return file_from(json::parse(text)); }

std::string to_text(const Manifest& manifest) {
  const Ordered out = {{"format", kFormatName},
                       {"version", manifest.format},
                       {"step", manifest.step},
                       {"epoch", manifest.epoch},
                       {"cursor",
                        {{"epoch", manifest.cursor.epoch},
                         {"step_in_epoch", manifest.cursor.step_in_epoch},
                         {"step", manifest.cursor.step}}},
                       {"ranks", manifest.ranks},
                       {"seed", manifest.seed},
                       {"model_digest", manifest.model_digest},
                       {"metrics", metrics_json(manifest.metrics)},
                       {"extra", manifest.extra},
                       {"plan", manifest.plan}};
  std::string text = "{\n";
  for (const auto& [key, value] : out.items())
    text += " " + Ordered(key).dump() + ": " + value.dump() + ",\n";
  text += " \"files\": [" + files_text(manifest.files) + "],\n";
  text += " " + std::string(kDigestKey) + kNoDigest + "\"\n}\n";
  const std::string digest = digest_of(text);
  text.replace(text.rfind(kDigestKey) + kDigestKey.size(), digest.size(), digest);
  return text;
}

Manifest manifest_from_text(const std::string& text, const std::string& where) {
  const size_t key = text.rfind(kDigestKey);
  std::string blanked = text, digest;
  if (key != std::string::npos && key + kDigestKey.size() + kNoDigest.size() <= text.size()) {
    digest = text.substr(key + kDigestKey.size(), kNoDigest.size());
    blanked.replace(key + kDigestKey.size(), kNoDigest.size(), kNoDigest);
  }
  if (digest.empty() || digest_of(blanked) != digest)
    throw user_error(where, " is damaged: it does not match the digest that it ends with");
  try {
    const json in = json::parse(text);
    if (in.at("version") != kCheckpointFormat)
      throw user_error(where, " has checkpoint format ", in.at("version").dump(),
                       "; this program reads format ", kCheckpointFormat);
    return manifest_from(in);
  } catch (const json::exception& error) {
    throw user_error(where, " is not a checkpoint's manifest: ", error.what());
  }
}

}  // namespace tautline::train
