// The two 8-bit floats of the OCP specification, converted by exact bit arithmetic.
//
// Encoding rounds to nearest even and saturates: what lies beyond the largest finite value becomes
// that value, infinity too, so no code of NaN or infinity is ever made from a number. All 256 codes
// decode to what the specification says. Loops over these functions vectorize: no branches, no
// tables.
#pragma once

#include <bit>
#include <cstdint>

#include "base/float_types.h"

namespace kvant {

// Bits of a number format: sign, exponent with `kBias`, `kMantissa` bits.
template <int kMantissa, int kBias, int kMaxCode>
struct Fp8 {
  static constexpr int kShift = 23 - kMantissa;
  // 2^(23 - kMantissa - kBias + 1): its unit in the last place is the spacing of subnormal codes.
  static constexpr float kAligner =
      std::bit_cast<float>(static_cast<uint32_t>(127 + kShift + 1 - kBias) << 23);
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << kMantissa;
  static constexpr float kSmallestNormal =
      std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - kBias) << 23);
  static constexpr float kLargest =
      std::bit_cast<float>((static_cast<uint32_t>(kMaxCode) + kRebias) << kShift);

  // A NaN has no meaning here (the cache rejects it before); it becomes the largest value.
  static uint8_t encode(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
    const float clamped = magnitude < kLargest ? magnitude : kLargest;
    const uint32_t m = std::bit_cast<uint32_t>(clamped);
    const uint32_t half_even = (1u << (kShift - 1)) - 1 + ((m >> kShift) & 1u);
    const uint32_t normal = ((m + half_even) >> kShift) - kRebias;
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(clamped + kAligner) - std::bit_cast<uint32_t>(kAligner);
    const uint32_t code = clamped < kSmallestNormal ? subnormal : normal;
    return static_cast<uint8_t>(code | ((bits >> 24) & 0x80u));
  }
};

using E4m3 = Fp8<3, 7, 0x7e>;   // largest 448; 0x7f and 0xff are NaN, there is no infinity
using E5m2 = Fp8<2, 15, 0x7b>;  // largest 57344; 0x7c is infinity, 0x7d to 0x7f NaN

inline float e5m2_to_f32(uint8_t code) { return f16_to_f32(static_cast<uint16_t>(code << 8)); }
inline float e4m3_to_f32(uint8_t code) {
  if ((code & 0x7f) == 0x7f)
    return f16_to_f32(static_cast<uint16_t>(0x7e00u | (code & 0x80u) << 8));
  const auto half = static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << 7);
  return f16_to_f32(half) * 256.0f;  // binary16 with a bias of 15 instead of 7
}

}  // namespace kvant
