#include "formats/row_fit.h"

#include <algorithm>
#include <cmath>

#include "formats/stored_scale.h"

namespace kvant {
namespace {

// Four floats that the compiler keeps in one register on every machine. Sums run in these four
// lanes by index, then pairwise: one order for every compiler and instruction set.
using Lanes = float __attribute__((vector_size(16)));
constexpr int kLanes = 4;

Lanes load_lanes(const float* at) {
  Lanes lanes;
  __builtin_memcpy(&lanes, at, sizeof lanes);
  return lanes;
}
Lanes min_lanes(Lanes a, Lanes b) { return a < b ? a : b; }
Lanes max_lanes(Lanes a, Lanes b) { return a > b ? a : b; }
float total(Lanes lanes) { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }

// A grid in float32, as the arithmetic of a fit uses it.
struct Affine {
  float scale;
  float zero;
};

Affine load(Grid grid) { return {f16_to_f32(grid.scale), f16_to_f32(grid.zero)}; }

// Sums over a row whose codes are those of one grid; x is taken relative to `base`, so that a
// common offset of the row (a key's channel) doesn't drown the differences.
struct CodeSums {
  float error2;  // Σ (x − x̂)²
  float c, cc, x, xc;
};

CodeSums sum_codes(const float* row, int n, Affine grid, float top, float base) {
  const float inverse = 1.0f / grid.scale;
  const float zero = grid.zero - base;
  const Lanes none{};
  const Lanes most = none + top;
  const Lanes magic = none + kRoundingMagic;
  Lanes error2{}, c{}, cc{}, xs{}, xc{};
  for (int i = 0; i < n; i += kLanes) {
    const Lanes x = load_lanes(row + i) - base;
    const Lanes clamped = min_lanes(max_lanes((x - zero) * inverse, none), most);
    const Lanes code = (clamped + magic) - magic;
    const Lanes error = x - (code * grid.scale + zero);
    error2 += error * error;
    c += code;
    cc += code * code;
    xs += x;
    xc += x * code;
  }
  return {total(error2), total(c), total(cc), total(xs), total(xc)};
}

void row_extremes(const float* row, int n, float* low, float* high) {
  Lanes least = load_lanes(row);
  Lanes most = least;
  for (int i = kLanes; i < n; i += kLanes) {
    least = min_lanes(load_lanes(row + i), least);
    most = max_lanes(load_lanes(row + i), most);
  }
  *low = std::min({least[0], least[1], least[2], least[3]});
  *high = std::max({most[0], most[1], most[2], most[3]});
}

// x^-0.3 for x > 0, the same bits on every machine (a library's pow isn't). With x = m·2^e and m in
// [0.5, 1), Newton's iteration for y^-10 = m³ starts within 10 % of its root and is exact to a
// double's last bits after five steps.
float power_minus_0_3(float x) {
  constexpr double kTenthRootOf2 = 1.0717734625362931;  // 2^0.1
  int exponent;
  const double m = std::frexp(static_cast<double>(x), &exponent);
  const double cube = m * m * m;
  double y = 1.1;
  for (int i = 0; i < 5; ++i) {
    const double y2 = y * y;
    const double y10 = y2 * y2 * y2 * y2 * y2;
    y += 0.1 * y * (1.0 - cube * y10);
  }
  const int tenths = -3 * exponent;
  const int whole = tenths >= 0 ? tenths / 10 : -((9 - tenths) / 10);
  for (int i = whole * 10; i < tenths; ++i) y *= kTenthRootOf2;
  return static_cast<float>(std::ldexp(y, whole));
}

}  // namespace

Grid min_max_grid(float low, float high, int levels) {
  return {store_scale((high - low) / static_cast<float>(levels)), f32_to_f16_saturated(low)};
}

Grid least_squares_grid(const float* row, int n, int levels) {
  constexpr int kRounds = 6;
  float low;
  float high;
  row_extremes(row, n, &low, &high);
  const auto top = static_cast<float>(levels);
  const auto count = static_cast<float>(n);
  Grid grid = min_max_grid(low, high, levels);
  Grid best = grid;
  float best_error = INFINITY;
  for (int round = 0; round <= kRounds; ++round) {
    const CodeSums s = sum_codes(row, n, load(grid), top, low);
    if (s.error2 < best_error) {
      best_error = s.error2;
      best = grid;
    }
    const float spread = count * s.cc - s.c * s.c;  // n²·variance of the codes: exact, below 2^24
    if (spread <= 0.0f) break;                      // all codes equal: any slope fits
    const float slope = (count * s.xc - s.c * s.x) / spread;
    if (!(slope > 0.0f)) break;
    const float offset = (s.x - slope * s.c) / count;
    const Grid next = {store_scale(slope), f32_to_f16_saturated(offset + low)};
    if (next.scale == grid.scale && next.zero == grid.zero) break;
    grid = next;
  }
  return best;
}

Grid hqq_grid(const float* row, int n, int levels) {
  // The constants of the published solver (its default, as in hqq 0.2.8): p = 0.7, β = 10 held
  // fixed, at most 20 rounds, stopped when the mean absolute error doesn't fall. Its zero point z'
  // is in codes: x̂ = (code − z')/inverse. Where it gives up on the scale (a range of 1e-4 or less),
  // min/max takes over.
  constexpr int kRounds = 20;
  constexpr float kBeta = 10.0f;
  float low;
  float high;
  row_extremes(row, n, &low, &high);
  const auto top = static_cast<float>(levels);
  const float range = high - low;
  if (range <= 1e-4f) return min_max_grid(low, high, levels);
  const float inverse = std::min(top / range, 2e4f);
  float zero = -low * inverse;
  float best_error = INFINITY;
  for (int round = 0; round < kRounds; ++round) {
    double error_sum = 0;
    double zero_sum = 0;
    for (int i = 0; i < n; ++i) {
      float code = row[i] * inverse + zero;
      code = round_even(code < 0.0f ? 0.0f : (code > top ? top : code));
      const float error = row[i] - (code - zero) / inverse;
      const float magnitude = std::fabs(error);
      error_sum += static_cast<double>(magnitude);
      // Shrinks the error by |e|^(p−1)/β; up to |e| = β^(−1/1.3) = 0.1701… nothing is left of it.
      const float kept =
          magnitude > 0.17f ? std::max(magnitude - power_minus_0_3(magnitude) / kBeta, 0.0f) : 0.0f;
      zero_sum += static_cast<double>(code - (row[i] - std::copysign(kept, error)) * inverse);
    }
    zero = static_cast<float>(zero_sum / n);
    const auto mean_error = static_cast<float>(error_sum / n);
    if (mean_error >= best_error) break;
    best_error = mean_error;
  }
  return {store_scale(1.0f / inverse), f32_to_f16_saturated(-zero / inverse)};
}

}  // namespace kvant
