// Fits of a uniform grid to one row: which scale and zero point a group of values gets.
//
// A *row* is whatever shares one scale: a token's channels, a group of them, or a channel's 64
// tokens. The grid has codes 0..levels and values scale·code + zero, both in binary16. min/max is
// the plain rule; the searches start from it:
// - least squares: codes and the best affine map for these codes in turn, keeping the smallest
// squared error;
// - HQQ: the half-quadratic solver of the HQQ library, which moves only the zero point to reduce
// |error|^0.7.
#pragma once

#include <cstdint>

namespace kvant {

// A grid as it is stored.
struct Grid {
  uint16_t scale = 1;  // binary16, > 0
  uint16_t zero = 0;   // binary16
};

enum class GridSearch : uint8_t { kMinMax, kLeastSquares, kHqq };

// The grid over [low, high]. REQUIRES low ≤ high, both within ±kMaxStored.
Grid min_max_grid(float low, float high, int levels);

// The searched grid for row[0..n), n a multiple of 16 and at most 1,024, values within ±kMaxStored.
Grid least_squares_grid(const float* row, int n, int levels);
Grid hqq_grid(const float* row, int n, int levels);

// 1.5·2^23: a float plus this has no bits left for a fraction.
inline constexpr float kRoundingMagic = 12582912.0f;

// The value nearest to x among the integers, ties to even. REQUIRES |x| ≤ 2^22.
inline float round_even(float x) { return (x + kRoundingMagic) - kRoundingMagic; }

}  // namespace kvant
