// Exact pages: rows as the model made them, in f32, f16 or bf16, laid out for the float kernels.
//
// A K page is [dim][64] (all tokens of a channel side by side, so that 64 scores are computed
// without horizontal sums), a V page [64][dim]. Rows are rounded to nearest even and saturate at
// the type's largest finite value; a NaN or an infinity is never stored. Slots that no row was
// written to hold anything.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/page_kernels.h"

namespace kvant {

// `num_rows` rows of `dim` floats, `stride` floats apart.
struct RowsView {
  const float* data;
  size_t stride;
  int num_rows;
  int dim;
};

// Bytes of one page side, a multiple of 64.
size_t exact_page_bytes(FloatType type, int dim);

// Writes rows to slots [first_slot, first_slot + num_rows). False if a value isn't finite; those
// slots then hold anything.
bool store_key_rows(FloatType type, const RowsView& rows, int first_slot, std::byte* page);
bool store_value_rows(FloatType type, const RowsView& rows, int first_slot, std::byte* page);

// Slots [first_slot, first_slot + num_rows) as float32 rows, `stride` floats apart.
struct RowsOut {
  float* data;
  size_t stride;
  int num_rows;
  int dim;
};
void load_key_rows(FloatType type, const std::byte* page, int first_slot, const RowsOut& out);
void load_value_rows(FloatType type, const std::byte* page, int first_slot, const RowsOut& out);

}  // namespace kvant
