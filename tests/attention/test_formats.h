// Formats that exist in tests only: one for everything that the codec interface lets a format ask
// for or do.
//
// All but the table keep a page as float32 rows rounded to sixteenths, so that sealed and exact
// rows differ visibly:
//   test_rows        nothing else
//   test_basis       V (and K) in another basis: channels reversed, odd ones negated; finish()
//   turns sums back test_pre_rope    K before RoPE, rotated when it is read test_previous    a side
//   blob with the sum of the previous layer's decoded page test_key_rows    V with a side blob with
//   the sum of the page's decoded keys test_outlier     a side blob with the page's largest value,
//   kept exact; the row holds 0 there test_artifact    rows are multiples of a given scale
//   test_table       K as indices into 16 levels; scores are sums of table entries, no product is
//   made when reading
#pragma once

#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "attention/bound_layers.h"

namespace kvant::test {

// The test formats, and the registered ones where `registered` is given.
FormatSource test_formats(const FormatSource* registered = nullptr);

// Where the side blob of a page of `dim` channels starts: one float.
inline size_t blob_offset(int dim) {
  return static_cast<size_t>(kPageTokens) * static_cast<size_t>(dim) * sizeof(float);
}

}  // namespace kvant::test
