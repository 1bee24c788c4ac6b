// XXH3-128 of bytes: keys and checksums. It finds accidents; it isn't proof against forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvant {

struct Hash128 {
  uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};
Hash128 hash128(std::span<const std::byte> bytes);
std::string hex(const Hash128& hash);  // 32 digits, the high ones first

// Collects tagged values for one hash. Texts go in with their lengths, so that no two lists of
// values look alike.
class HashInput {
 public:
  explicit HashInput(std::string_view tag) { add(tag); }
  HashInput& add(std::span<const std::byte> bytes);
  HashInput& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  HashInput& add(uint64_t number);
  template <typename T>
  HashInput& add_all(std::span<const T> values) {
    return add(std::as_bytes(values));
  }
  Hash128 hash() const { return hash128(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace kvant

// Its bits are as good as random, so one half of them serves.
template <>
struct std::hash<kvant::Hash128> {
  size_t operator()(const kvant::Hash128& h) const noexcept { return static_cast<size_t>(h.low); }
};
