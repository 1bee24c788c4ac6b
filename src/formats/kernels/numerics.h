// The numbers that every instruction set's kernels share, so that all of them give the same bits.
// The reasons and bounds are in docs/numerics.md. Constants and constexpr functions only: files
// compiled with per-ISA flags include this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant {

// Queries and probabilities become integers. Beside codes of more than 4 bits both have two limbs,
// signed bytes: their largest magnitude is 127·256 + 127. Beside others, whose own error is far
// larger, a row's root mean square is this many steps (fewer where the largest is still one signed
// limb, more where that takes no second one), and a probability is one unsigned byte.
inline constexpr float kTwoLimbMax = 32639.0f;
inline constexpr float kOneLimbMax = 127.0f;
inline constexpr float kStepsOfMean = 36.0f;
inline constexpr float kByteMax = 255.0f;
constexpr bool needs_two_limbs(int bits) { return bits > 4; }
// What is multiplied with integers so coarse is small: codes with a zero point are taken from their
// middle, u − 2^(bits−1), and zero + scale·2^(bits−1) goes with the float sums.
constexpr int middle_of(int bits, bool has_zero) {
  return has_zero && !needs_two_limbs(bits) ? 1 << (bits - 1) : 0;
}
// Rows whose largest magnitude is below this count as zero: 32639 / kTinyMax is still finite.
inline constexpr float kTinyMax = 0x1p-100f;

// Probabilities of one byte are rounded up where their fraction is above a threshold of the token's
// own, not above a half: tokens of a page that all have a small one would vanish together, or all
// be rounded up. Added to the token's value before it is rounded; neighbours, and their neighbours
// in turn, have thresholds that are evenly spread (a van der Corput sequence).
constexpr float dither_of(int token) {
  int reversed = 0;
  for (int bit = 0; bit < 6; ++bit) reversed |= (token >> bit & 1) << (5 - bit);
  return (2.0f * static_cast<float>(reversed) + 1.0f) / 128.0f - 0.5f;
}
struct Dither {
  float of_token[64];
};
// Not inline: each ISA's objects read one of their own.
constexpr Dither kDither = [] {
  Dither dither{};
  for (int t = 0; t < 64; ++t) dither.of_token[t] = dither_of(t);
  return dither;
}();

// exp(x) = 2^n · e^r with n = round(x·log2 e), r = x − n·ln 2 in two steps, e^r by its series up to
// r^7/7!.
inline constexpr float kExpLowest = -87.0f;  // e^−87 is still a normal number; below it exp is 0
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62ep-1f;  // 12 significant bits: n·kLn2High is exact
inline constexpr float kLn2Low = 0x1.0bfbe8p-15f;
inline constexpr float kExpSeries[8] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                                        1.0f / 6,    0.5f,       1.0f,       1.0f};

// Bit planes of a code width, largest first.
struct Planes {
  int count;
  int width[3];
};
constexpr Planes planes_of(int bits) {
  if (bits == 8) return {1, {8, 0, 0}};
  Planes planes{};
  for (int width = 4; width > 0; width /= 2) {
    if ((bits & width) != 0) planes.width[planes.count++] = width;
  }
  return planes;
}

// Vectors of 64 bytes that hold `num_quads` quads (of dims or tokens) in a plane of that width.
constexpr int plane_vectors(int width, int num_quads) {
  const int per_vector = 8 / width;
  return (num_quads + per_vector - 1) / per_vector;
}

// What a quantized row carries beside its limbs.
struct QuantizedRow {
  float scale;       // value = scale · integer
  float sum;         // Σ of the row before quantization (queries), or Σ p·zero (probabilities)
  int32_t int_sum;   // Σ of the integers, for the codes' offset
  int32_t has_high;  // whether an integer has a second limb
};

// A prepared query of an integer page is 2·D bytes, limbs in front, and then num_groups
// QuantizedRow; per-channel pages keep D floats instead. Both in whole cache lines.
constexpr size_t query_record_bytes(int dim, int num_groups, bool per_channel) {
  const size_t d = static_cast<size_t>(dim);
  const size_t bytes =
      per_channel ? 4 * d : 2 * d + sizeof(QuantizedRow) * static_cast<size_t>(num_groups);
  return (bytes + 63) / 64 * 64;
}

}  // namespace kvant
