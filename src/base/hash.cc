#include "base/hash.h"

// The functions themselves, not a library: builds for other machines have no other one.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace kvant {

Hash128 hash128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.low = hash.low64, .high = hash.high64};
}

std::string hex(const Hash128& hash) {
  char out[33];
  std::snprintf(out, sizeof out, "%016llx%016llx", static_cast<unsigned long long>(hash.high),
                static_cast<unsigned long long>(hash.low));
  return out;
}

HashInput& HashInput::add(std::span<const std::byte> bytes) {
  add(uint64_t{bytes.size()});
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return *this;
}

HashInput& HashInput::add(uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8)
    bytes_.push_back(static_cast<std::byte>(number >> shift));
  return *this;
}

}  // namespace kvant
