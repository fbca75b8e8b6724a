#include "tautline/train/event_file.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <unistd.h>

#include <protozero/pbf_writer.hpp>

#include "tautline/base/error.h"

namespace tautline::train {
namespace {

// event.proto: Event
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr uint32_t kValue = 1;                  // Summary
constexpr uint32_t kTag = 1, kSimpleValue = 2;  // Summary.Value
constexpr uint32_t kStatus = 1;                 // SessionLog
constexpr int32_t kStart = 1;  // SessionLog.START: what has this step or a later one is void

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string file_name() {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  const auto micros = static_cast<int64_t>(seconds_since_1970() * 1e6);
  return "events.out.tfevents." + std::to_string(micros / 1'000'000) + "." + host + "." +
         std::to_string(getpid()) + "." + std::to_string(micros % 1'000'000);
}

}  // namespace

uint32_t crc32c(const void* data, size_t bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  const auto* next = static_cast<const uint8_t*>(data);
  uint32_t crc = ~0u;
  for (size_t i = 0; i < bytes; ++i) crc = crc >> 8 ^ kTable[(crc ^ next[i]) & 255];
  return ~crc;
}

uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

EventFile::EventFile(const std::string& folder, int64_t resume_step) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  path_ = folder + "/" + file_name();
  errno = 0;
  out_.open(path_, std::ios::binary | std::ios::trunc);
  if (!out_) throw user_error("cannot create ", path_, ": ", std::strerror(errno));
  std::string event;
  protozero::pbf_writer version(event);
  version.add_double(kWallTime, seconds_since_1970());
  version.add_string(kFileVersion, "brain.Event:2");
  put(event);
  if (resume_step <= 0) return;
  event.clear();
  protozero::pbf_writer restart(event);
  restart.add_double(kWallTime, seconds_since_1970());
  restart.add_int64(kStep, resume_step + 1);
  protozero::pbf_writer session(restart, kSessionLog);
  session.add_enum(kStatus, kStart);
  session.commit();
  put(event);
}

void EventFile::write(double wall_time, int64_t step,
                      const std::vector<std::pair<std::string, double>>& scalars) {
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kWallTime, wall_time);
  writer.add_int64(kStep, step);
  {
    protozero::pbf_writer summary(writer, kSummary);
    for (const auto& [tag, number] : scalars) {
      protozero::pbf_writer value(summary, kValue);
      value.add_string(kTag, tag);
      value.add_float(kSimpleValue, static_cast<float>(number));
    }
  }
  put(event);
}

void EventFile::put(const std::string& event) {
  const uint64_t length = event.size();
  const uint32_t of_length = masked(crc32c(&length, sizeof length));
  const uint32_t of_event = masked(crc32c(event.data(), event.size()));
  errno = 0;
  out_.write(reinterpret_cast<const char*>(&length), sizeof length);
  out_.write(reinterpret_cast<const char*>(&of_length), sizeof of_length);
  out_.write(event.data(), static_cast<std::streamsize>(event.size()));
  out_.write(reinterpret_cast<const char*>(&of_event), sizeof of_event);
  out_.flush();
  if (!out_) throw user_error("cannot write ", path_, ": ", std::strerror(errno));
}

}  // namespace tautline::train
