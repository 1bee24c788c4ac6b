// A weight matrix as the dense paths read it: rows of one tensor type, in the file's mapping or in
// memory of its own, or pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model/weight_pages.h"

namespace kvant {

// [rows][cols] = [outputs][inputs]. Slices share the bytes: rows are independent of one another in
// every type.
struct Matrix {
  uint32_t type = 0;  // ggml_type
  int64_t rows = 0;
  int64_t cols = 0;
  size_t row_bytes = 0;
  const std::byte* data = nullptr;
  // Converted weights; null when `data` is in a mapping. Shared because slices of a fused matrix
  // outlive one another in no particular order.
  std::shared_ptr<const AlignedArray<std::byte>> owned;
  // The same weights for the dense paths, which then read nothing else: `data` is null.
  std::shared_ptr<const WeightPages> pages = nullptr;

  const std::byte* row(int64_t r) const { return data + static_cast<size_t>(r) * row_bytes; }
  bool empty() const { return rows == 0; }
  size_t bytes() const { return static_cast<size_t>(rows) * row_bytes; }

  // REQUIRES 0 <= first, first + count <= rows, and no pages.
  Matrix slice(int64_t first, int64_t count) const {
    Matrix out = *this;
    out.data = row(first);
    out.rows = count;
    return out;
  }
};

// y = W·x + bias.
struct Linear {
  Matrix weight;
  std::vector<float> bias;  // [rows], or empty
};

}  // namespace kvant
