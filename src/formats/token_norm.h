// Factors that make a page's tokens alike in size, so that one scale per channel fits all of them.
//
// Tokens differ in size, and the largest of a channel's 64 sets the step for all. A token's factor
// is the root mean square of its channels, each in units of its own root mean square over the page
// with all tokens divided by their factors: two steps of Sinkhorn's scaling. KVarN (arXiv
// 2606.03458) evens out rotated pages so, by their standard deviations and in more steps; here rows
// keep their means, which is what K per channel with a zero point wants (docs/numerics.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant {

// rows: [64][dim], within ±kMaxStored, dim a multiple of 16. factors: [64], as stored
// (stored_scale.h), about 1 on average.
void token_factors(const float* rows, size_t dim, uint8_t* factors);

}  // namespace kvant
