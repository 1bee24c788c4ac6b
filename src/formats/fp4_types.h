// The 4-bit float and the power-of-two scale of the OCP Microscaling Formats specification (2023).
//
// E2M1: sign, two bits of exponent, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6. Twice that are
// small integers, so pages of it run on integer products. E8M0: the exponent of a power of two.
// Encoding rounds to nearest even and saturates; loops over these functions vectorize.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace kvant {

inline constexpr float kE2m1Largest = 6.0f;

// Values of the codes 0 to 15.
inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                      4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                      -2.0f, -3.0f, -4.0f, -6.0f};

// Twice the values of all codes plus 12, the table of the integer kernels: 0 to 24.
inline constexpr int kE2m1Offset = 12;
inline constexpr std::array<uint8_t, 16> kE2m1Levels = {12, 13, 14, 15, 16, 18, 20, 24,
                                                        12, 11, 10, 9,  8,  6,  4,  0};

// The middle of two codes goes to the even one: strict where that is the lower.
inline uint8_t to_e2m1(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const float m = std::bit_cast<float>(bits & 0x7fffffffu);
  const unsigned code = unsigned{m > 0.25f} + unsigned{m >= 0.75f} + unsigned{m > 1.25f} +
                        unsigned{m >= 1.75f} + unsigned{m > 2.5f} + unsigned{m >= 3.5f} +
                        unsigned{m > 5.0f};
  return static_cast<uint8_t>(code | (bits >> 28 & 8u));
}

// 2^(e − 127); 255 is NaN. There is no zero.
inline float e8m0_to_f32(uint8_t e) {
  const uint32_t bits = uint32_t{e} << 23 | (e == 0 || e == 255 ? uint32_t{1} << 22 : 0);
  return std::bit_cast<float>(bits);
}

// The scale of a block whose largest magnitude is `most`: 2^(⌊log2 most⌋ − emax), where 2^emax is
// the largest power of two that an element holds; 2^-127 for anything below that, zero included.
inline uint8_t to_e8m0(float most, int emax) {
  const int e = static_cast<int>(std::bit_cast<uint32_t>(most) >> 23) - emax;
  return static_cast<uint8_t>(e < 0 ? 0 : e);
}

// 1 / 2^(e − 127), e ≤ 253.
inline float e8m0_inverse(uint8_t e) { return std::bit_cast<float>((254u - e) << 23); }

}  // namespace kvant
