// SoftmaxState: attention over a part of the keys, for several queries, and how two parts become
// one.
//
// Per query: m, the largest score seen; l, Σ exp(score − m); and Σ exp(score − m)·v in two
// accumulators, because sealed V pages may be in another basis (rotated, transformed) than exact
// rows: acc_coded is turned into the model's basis once, at the end. A part without any visible key
// is (−inf, 0, 0, 0) and merging it changes nothing.
//
// Merging is a fixed operation on two states; attention merges spans of pages in rising order. So a
// query's result is the same bits whichever thread computed which span.
#pragma once

#include <array>
#include <cstddef>

#include "formats/page_kernels.h"

namespace kvant {

// Borrowed memory of the states of `num_queries` queries.
struct SoftmaxState {
  float* max;        // [num_queries]
  float* sum;        // [num_queries]
  float* acc_exact;  // [num_queries][dim]
  float* acc_coded;  // [num_queries][dim]; nullptr: no page is ever in a coded basis
  int num_queries;
  int dim;

  // Floats that states of that shape take.
  static size_t num_floats(int num_queries, int dim, bool coded);
  static SoftmaxState at(float* memory, int num_queries, int dim, bool coded);

  void clear();
  // Takes the scores of 64 tokens for each of `count` queries from the first on, masked by −inf,
  // and leaves exp(score − max) in them: raises max, rescales what was accumulated, adds to sum.
  // Gives what was added to the sums. REQUIRES count ≤ kMostRows.
  static constexpr int kMostRows = 16;
  std::array<float, kMostRows> add_scores(int first, int count, float* scores,
                                          const PageKernels& kernels);
  // This state becomes the state of both parts. REQUIRES equal shapes.
  void merge(const SoftmaxState& later, const PageKernels& kernels);

 private:
  void rescale(int i, float factor, const PageKernels& kernels);
};

}  // namespace kvant
