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

}  // namespace kvant
