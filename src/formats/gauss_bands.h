// What a uniform grid costs on Gaussian rows: the numbers that the property tests hold the integer
// formats to.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace kvant {

enum class GridKind : uint8_t { kSymmetric, kZeroPoint, kLeastSquares };

// Signal to noise in dB when 16, 32, 64, 128 or 256 standard normal values share a grid; made by
// tools/make_format_goldens.py with numpy.
struct GaussRow {
  int bits;
  GridKind kind;
  double db[5];
};
inline constexpr GaussRow kGaussRows[] = {
    {8, GridKind::kSymmetric, {46.56, 45.44, 44.55, 43.81, 43.17}},
    {8, GridKind::kZeroPoint, {48.34, 46.75, 45.56, 44.64, 43.89}},
    {8, GridKind::kLeastSquares, {49.07, 47.22, 45.82, 44.77, 43.95}},
    {6, GridKind::kSymmetric, {34.31, 33.20, 32.30, 31.55, 30.92}},
    {6, GridKind::kZeroPoint, {36.21, 34.60, 33.43, 32.50, 31.73}},
    {6, GridKind::kLeastSquares, {37.02, 35.21, 33.85, 32.79, 31.93}},
    {5, GridKind::kSymmetric, {28.01, 26.89, 25.99, 25.25, 24.61}},
    {5, GridKind::kZeroPoint, {30.05, 28.44, 27.27, 26.34, 25.58}},
    {5, GridKind::kLeastSquares, {30.88, 29.07, 27.72, 26.69, 25.85}},
    {4, GridKind::kSymmetric, {21.39, 20.27, 19.37, 18.63, 18.00}},
    {4, GridKind::kZeroPoint, {23.74, 22.14, 20.96, 20.03, 19.27}},
    {4, GridKind::kLeastSquares, {24.60, 22.82, 21.52, 20.55, 19.79}},
    {3, GridKind::kSymmetric, {14.02, 12.91, 12.01, 11.27, 10.63}},
    {3, GridKind::kZeroPoint, {17.11, 15.51, 14.34, 13.41, 12.65}},
    {3, GridKind::kLeastSquares, {18.11, 16.45, 15.35, 14.65, 14.22}},
    {2, GridKind::kSymmetric, {4.65, 3.65, 2.89, 2.32, 1.88}},
    {2, GridKind::kZeroPoint, {9.72, 8.12, 6.94, 6.03, 5.26}},
    {2, GridKind::kLeastSquares, {11.46, 10.30, 9.75, 9.48, 9.34}},
    {1, GridKind::kZeroPoint, {-1.03, -2.92, -4.36, -5.51, -6.47}},
    {1, GridKind::kLeastSquares, {5.39, 4.87, 4.63, 4.52, 4.45}},
};

// For any row length from 16 on: the table, interpolated over log2 of the length. Longer rows (one
// scale for a page) lose about 0.4 dB per doubling, as the extremes of more values lie further out.
inline double gauss_db(int bits, GridKind kind, int row_length) {
  for (const GaussRow& row : kGaussRows) {
    if (row.bits != bits || row.kind != kind) continue;
    const double at = std::log2(row_length) - 4;
    if (at >= 4) return row.db[4] - (at - 4) * 0.4;
    const int low = static_cast<int>(at);
    const double part = at - low;
    return row.db[low] * (1 - part) + row.db[low == 4 ? 4 : low + 1] * part;
  }
  return 0;
}

}  // namespace kvant
