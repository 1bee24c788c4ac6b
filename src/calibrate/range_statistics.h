// RangeStatistics: the ranges of a model's Q, K and V (Q and K after RoPE), per channel, head and
// layer.
//
// Of every head the magnitudes of its numbers, of every channel the smallest and the largest. Rows
// are rounded to bfloat16, as a cache stores K and V. The first `skipped` tokens of each document
// don't count: those that a cache keeps exact. Neither threads nor chunks change a bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "calibrate/magnitudes.h"
#include "calibrate/observe.h"
#include "model/model.h"

namespace kvant {

struct HeadRange {
  Magnitudes magnitudes;
  std::vector<float> low, high;  // [dim]; +inf and −inf where nothing was seen
};

struct SideRange {
  int dim = 0;
  std::vector<HeadRange> heads;

  Magnitudes all() const;  // of all heads together
};

// Empty sides where a layer owns no such rows.
struct LayerRanges {
  SideRange query, key, value;
};

class RangeStatistics final : public RowObserver {
 public:
  // `threads` outlives this.
  RangeStatistics(const ModelInfo& info, int64_t skipped, ThreadPool& threads);

  void see_keys(const ObservedRows& rows) override { see(rows, &LayerRanges::key); }
  void see_values(const ObservedRows& rows) override { see(rows, &LayerRanges::value); }
  void see_queries(const ObservedRows& rows) override { see(rows, &LayerRanges::query); }

  std::span<const LayerRanges> layers() const { return layers_; }
  std::span<LayerRanges> layers() { return layers_; }  // to go on from counts that were kept

 private:
  void see(const ObservedRows& rows, SideRange LayerRanges::*side);

  int64_t skipped_;
  ThreadPool& threads_;
  std::vector<LayerRanges> layers_;
};

}  // namespace kvant
