#include "tautline/train/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "tautline/base/error.h"

namespace tautline::train {
namespace {

using nlohmann::json;

struct TypeRow {
  DataType type;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<TypeRow, 6> kTypes{{{DataType::kF32, "F32", 4},
                                         {DataType::kBf16, "BF16", 2},
                                         {DataType::kF16, "F16", 2},
                                         {DataType::kI64, "I64", 8},
                                         {DataType::kI32, "I32", 4},
                                         {DataType::kU8, "U8", 1}}};

std::optional<DataType> type_named(std::string_view name) {
  for (const TypeRow& row : kTypes)
    if (row.name == name) return row.type;
  return std::nullopt;
}

// Elements x size, or nothing where it is negative or beyond 63 bits: a header can claim anything.
std::optional<int64_t> checked_bytes(DataType type, std::span<const int64_t> shape) {
  int64_t bytes = bytes_of(type);
  for (int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  return bytes;
}

// The order of the file: larger elements first, then by name.
std::vector<const TensorView*> file_order(std::span<const TensorView> tensors) {
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    if (bytes_of(a->type) != bytes_of(b->type)) return bytes_of(a->type) > bytes_of(b->type);
    return a->name < b->name;
  });
  return order;
}

std::string header_text(std::span<const TensorView* const> order, const TextMap& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorView* tensor : order) {
    if (tensor->name == "__metadata__" || header.contains(tensor->name))
      throw user_error("two tensors are to be saved under the name '", tensor->name, "'");
    const int64_t end = offset + tensor->bytes();
    header[tensor->name] = {{"dtype", name_of(tensor->type)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::type_error&) {
    throw user_error("a tensor's name or the metadata to be saved with it is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(text.size()) > kMaxSafetensorsHeader)
    throw user_error("the names of ", order.size(), " tensors take ", text.size(),
                     " bytes, more than the 100 MB that a safetensors header may have");
  return text;
}

// JSON that refuses a key given twice in one object, which parsers otherwise resolve in silence.
json parse_strictly(const std::string& text, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  const auto refuse_twice = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw user_error(file, " names '", value.get<std::string>(), "' twice in its header");
    return true;
  };
  try {
    return json::parse(text, refuse_twice);
  } catch (const json::exception& error) {
    throw user_error(file, " has a header that is not JSON: ", error.what());
  }
}

std::vector<int64_t> read_integers(const json& entry, const char* key, const std::string& where) {
  const auto list = entry.find(key);
  if (list == entry.end() || !list->is_array()) throw user_error(where, " has no list '", key, "'");
  std::vector<int64_t> values;
  for (const json& value : *list) {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMost)
      throw user_error(where, " has ", value.dump(), " in '", key, "': a whole number is needed");
    values.push_back(value.get<int64_t>());
  }
  return values;
}

TensorInfo read_entry(const json& entry, const std::string& where, int64_t data_begin) {
  if (!entry.is_object()) throw user_error(where, " is not described by an object");
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) throw user_error(where, " has no dtype");
  const std::string type_name = dtype->get<std::string>();
  const std::optional<DataType> type = type_named(type_name);
  if (!type)
    throw user_error(where, " has dtype ", type_name,
                     "; F32, BF16, F16, I64, I32 and U8 can be read");
  TensorInfo info{*type, read_integers(entry, "shape", where), 0, 0};
  const std::vector<int64_t> range = read_integers(entry, "data_offsets", where);
  const std::optional<int64_t> bytes = checked_bytes(*type, info.shape);
  if (range.size() != 2 || range[0] > range[1] || !bytes || range[1] - range[0] != *bytes ||
      range[1] > std::numeric_limits<int64_t>::max() - data_begin)
    throw user_error(where, " has data_offsets ", entry.at("data_offsets").dump(),
                     ", which do not agree with dtype ", type_name, " and shape ",
                     entry.at("shape").dump());
  info.offset = range[0] + data_begin;
  info.bytes = *bytes;
  return info;
}

// Tensors cover [data_begin, size) in some order, with neither overlap nor hole.
void check_cover(const SafetensorsHeader& header, int64_t data_begin, int64_t size,
                 const std::string& file) {
  std::vector<std::pair<std::string, TensorInfo>> order(header.tensors.begin(),
                                                        header.tensors.end());
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.offset, a.second.bytes) < std::pair(b.second.offset, b.second.bytes);
  });
  int64_t next = data_begin;
  for (const auto& [name, info] : order) {
    if (info.offset != next)
      throw user_error("tensor '", name, "' of ", file, " begins at byte ",
                       info.offset - data_begin, " of the data, but the tensor before it ends at ",
                       next - data_begin);
    next += info.bytes;
    if (next > size)
      throw user_error(file, " is cut short: tensor '", name, "' ends at byte ", next,
                       ", the file at ", size);
  }
  if (next != size)
    throw user_error(file, " has ", size - next, " bytes behind its last tensor; ", next,
                     " bytes were expected in all");
}

}  // namespace

int64_t bytes_of(DataType type) { return kTypes[static_cast<size_t>(type)].bytes; }
std::string_view name_of(DataType type) { return kTypes[static_cast<size_t>(type)].name; }

int64_t TensorView::bytes() const {
  const std::optional<int64_t> bytes = checked_bytes(type, shape);
  TAUTLINE_INVARIANT(bytes.has_value(), "tensor " << name << " has an impossible shape");
  return *bytes;
}

void write_safetensors(OutputFile& out, std::span<const TensorView> tensors,
                       const TextMap& metadata) {
  const std::vector<const TensorView*> order = file_order(tensors);
  const std::string text = header_text(order, metadata);
  const uint64_t length = text.size();
  out.write(&length, sizeof length);
  out.write(text.data(), static_cast<int64_t>(text.size()));
  for (const TensorView* tensor : order)
    if (tensor->bytes() > 0) out.write(tensor->data, tensor->bytes());
  out.finish();
}

SafetensorsHeader read_safetensors_header(InputFile& file) {
  uint64_t length = 0;
  if (file.size() < static_cast<int64_t>(sizeof length))
    throw user_error(file.name(), " has ", file.size(), " bytes: too short for a safetensors file");
  file.read_at(0, sizeof length, &length);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader))
    throw user_error(file.name(), " claims a header of ", length,
                     " bytes; a safetensors header has at most 100 MB");
  const int64_t data_begin = static_cast<int64_t>(sizeof length + length);
  if (data_begin > file.size())
    throw user_error(file.name(), " is cut short inside its header: ", data_begin,
                     " bytes are announced, the file has ", file.size());
  std::string text(length, '\0');
  file.read_at(sizeof length, static_cast<int64_t>(length), text.data());
  const json root = parse_strictly(text, file.name());
  if (!root.is_object()) throw user_error(file.name(), " has a header that is not a JSON object");

  SafetensorsHeader header;
  for (const auto& [name, entry] : root.items()) {
    if (name == "__metadata__") {
      try {
        header.metadata = entry.get<TextMap>();
      } catch (const json::exception&) {
        throw user_error(file.name(), " has a '__metadata__' that is not text by name");
      }
      continue;
    }
    header.tensors[name] = read_entry(entry, "tensor '" + name + "' of " + file.name(), data_begin);
  }
  check_cover(header, data_begin, file.size(), file.name());
  return header;
}

void read_tensor(InputFile& file, const TensorInfo& tensor, int64_t begin, int64_t bytes,
                 void* out) {
  TAUTLINE_INVARIANT(begin >= 0 && bytes >= 0 && begin + bytes <= tensor.bytes,
                     "bytes [" << begin << ", " << begin + bytes << ") of a tensor of "
                               << tensor.bytes << " in " << file.name());
  if (bytes > 0) file.read_at(tensor.offset + begin, bytes, out);
}

}  // namespace tautline::train
