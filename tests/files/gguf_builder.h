// Writes GGUF bytes for tests, honest ones or not: every count and offset can be overridden by
// patching the result.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace kvant {

class GgufBuilder {
 public:
  template <typename T>
  static std::string raw(T value) {
    std::string out(sizeof(T), '\0');
    std::memcpy(out.data(), &value, sizeof(T));
    return out;
  }
  static std::string text(std::string_view s) { return raw<uint64_t>(s.size()) + std::string(s); }

  // A key with an already encoded value.
  GgufBuilder& key(std::string_view name, uint32_t type, const std::string& value) {
    keys_ += text(name) + raw(type) + value;
    ++num_keys_;
    return *this;
  }
  GgufBuilder& string(std::string_view name, std::string_view value) {
    return key(name, 8, text(value));
  }
  GgufBuilder& u32(std::string_view name, uint32_t value) { return key(name, 4, raw(value)); }
  GgufBuilder& f32(std::string_view name, float value) { return key(name, 6, raw(value)); }
  GgufBuilder& boolean(std::string_view name, bool value) {
    return key(name, 7, raw<uint8_t>(value ? 1 : 0));
  }
  GgufBuilder& strings(std::string_view name, const std::vector<std::string>& values) {
    std::string body = raw<uint32_t>(8) + raw<uint64_t>(values.size());
    for (const std::string& value : values) body += text(value);
    return key(name, 9, body);
  }
  template <typename T>
  GgufBuilder& array(std::string_view name, uint32_t type, const std::vector<T>& values) {
    std::string body = raw(type) + raw<uint64_t>(values.size());
    for (const T& value : values) body += raw(value);
    return key(name, 9, body);
  }

  GgufBuilder& tensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims,
                      const std::string& data) {
    return tensor_at(name, type, dims, data_.size(), data);
  }
  // The same, claiming another offset.
  GgufBuilder& tensor_at(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims,
                         uint64_t offset, const std::string& data) {
    tensors_ += text(name) + raw(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) tensors_ += raw(dim);
    tensors_ += raw(type) + raw(offset);
    ++num_tensors_;
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
    return *this;
  }

  std::string bytes(uint32_t version = 3) const {
    std::string out = "GGUF" + raw(version) + raw(num_tensors_) + raw(num_keys_) + keys_ + tensors_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

 private:
  std::string keys_, tensors_, data_;
  uint64_t num_keys_ = 0, num_tensors_ = 0;
};

}  // namespace kvant
