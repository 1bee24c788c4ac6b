// Deterministic random numbers: the same seed gives the same stream on every machine, compiler and
// library.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace kvant {

// SplitMix64 (Steele, Lea, Flood, 2014): a 64-bit mix; also good as a hash of small keys.
inline uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A SplitMix64 sequence. Copyable; one per thread of use.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(mix64(seed)) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  __extension__ using Wide = unsigned __int128;
  // Uniform in [0, n); n > 0. The bias is below 2^-32 for n < 2^32.
  uint64_t below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<Wide>(next()) * n) >> 64);
  }
  // Standard normal (Box–Muller, one value per two draws).
  float normal() {
    const double u = 1.0 - uniform();
    const double v = uniform();
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
  }

 private:
  uint64_t state_;
};

}  // namespace kvant
