#include "files/safetensors_writer.h"

#include <cstring>
#include <nlohmann/json.hpp>

namespace kvant {
namespace {

constexpr size_t kHeaderMultiple = 8;  // data begins at a multiple of it

}  // namespace

void SafetensorsWriter::add(std::string name, std::string_view dtype, std::vector<uint64_t> shape,
                            std::span<const std::byte> bytes) {
  const size_t begin = data_.size();
  data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  entries_.push_back({std::move(name), std::string(dtype), std::move(shape), begin, data_.size()});
}

std::string SafetensorsWriter::finish(
    std::span<const std::pair<std::string, std::string>> metadata) const {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  for (const Entry& entry : entries_) {
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + kHeaderMultiple - 1) / kHeaderMultiple * kHeaderMultiple, ' ');
  const uint64_t length = text.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text + data_;
}

}  // namespace kvant
