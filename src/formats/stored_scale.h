// How scales and zero points are stored: binary16, saturated, and never a zero scale.
//
// Every encoder stores its metadata first and quantizes with what was stored, so that encode and
// decode agree.
#pragma once

#include <cstdint>

#include "base/float_types.h"

namespace kvant {

// The largest magnitude that a sealed page stands for; rows beyond it saturate, in every format.
inline constexpr float kMaxStored = 65504.0f;

inline float saturate(float x) {
  const float low = x < -kMaxStored ? -kMaxStored : x;
  return low > kMaxStored ? kMaxStored : low;
}

// `scale` ≥ 0 as binary16. A scale that would vanish becomes the smallest positive one, 2^-24: a
// constant group then has code 0 or saturates within 2^-24·levels of its value, and nothing divides
// by zero.
inline uint16_t store_scale(float scale) {
  const uint16_t stored = f32_to_f16_saturated(scale);
  return (stored & 0x7fff) == 0 ? uint16_t{1} : stored;  // -0 is a zero too
}

// A factor per token in one byte: the middle bits of a positive binary16, five of exponent and
// three of mantissa (1/16 of the value at most from the next). Rows are divided by the stored
// value, so what rounding costs is only how even it makes them.
inline float factor_value(uint8_t stored) { return f16_to_f32(static_cast<uint16_t>(stored << 7)); }

// The factor nearest to `factor`, within [1/16, 16].
inline uint8_t store_factor(float factor) {
  constexpr float kMost = 16.0f;
  const float low = factor < 1 / kMost ? 1 / kMost : factor;
  const unsigned half = f32_to_f16(low > kMost ? kMost : low);
  return static_cast<uint8_t>((half + 0x40) >> 7);
}

}  // namespace kvant
