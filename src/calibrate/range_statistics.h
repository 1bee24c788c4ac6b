// RangeStatistics: the ranges of a model's Q, K and V (Q and K after RoPE), per channel, head and
// layer.
//
// Of every head the magnitudes of its numbers, of every channel the smallest and the largest, and
// its magnitudes where they are asked for. Rows are rounded to bfloat16, as a cache stores K and V;
// with `rotated` they are then turned as formats `_rot` do it, and ranges are those of that basis.
// Neither threads nor chunks change a bit.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/threads.h"
#include "calibrate/channel_magnitudes.h"
#include "calibrate/magnitudes.h"
#include "calibrate/observe.h"
#include "formats/rotated.h"
#include "model/model.h"

namespace kvant {

struct RangeOptions {
  int64_t skipped = 0;    // tokens of each document that don't count: a cache keeps them exact
  bool channels = false;  // magnitudes of each, 6 KiB
  bool rotated = false;   // by the rotation of seed 0
};

struct HeadRange {
  Magnitudes magnitudes;
  std::vector<ChannelMagnitudes> channels;  // [dim], or none
  std::vector<float> low, high;             // [dim]; +inf and −inf where nothing was seen
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
  RangeStatistics(const ModelInfo& info, const RangeOptions& options, ThreadPool& threads);

  void see_keys(const ObservedRows& rows) override { see(rows, &LayerRanges::key); }
  void see_values(const ObservedRows& rows) override { see(rows, &LayerRanges::value); }
  void see_queries(const ObservedRows& rows) override { see(rows, &LayerRanges::query); }

  // Of all counters.
  uint64_t bytes() const;
  std::span<const LayerRanges> layers() const { return layers_; }
  std::span<LayerRanges> layers() { return layers_; }  // to go on from counts that were kept

 private:
  void see(const ObservedRows& rows, SideRange LayerRanges::*side);

  RangeOptions options_;
  std::map<int, Rotation> rotations_;  // by width; none unless rows are turned
  ThreadPool& threads_;
  std::vector<LayerRanges> layers_;
};

}  // namespace kvant
