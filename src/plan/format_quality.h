// In which order formats are tried: by quality as measured on real models.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvant/plan.h"

namespace kvant {

// A format of a request: what was asked for of most layers, what presets depend on in these layers,
// and the bits of its sealed pages.
struct RankedFormat {
  std::string name;
  FormatPair pair;
  ModelTraits traits;
  double bits = 0;
};

struct QualityOrder {
  std::vector<std::string> formats;  // best first
  std::vector<std::string> by_bits;  // those of them that aren't measured
};

// Measured formats in the order of formats_by_quality(), a pair that is what a preset stands for in
// these layers as the preset. One that isn't measured stands before the first measured one with
// fewer bits. `bits_of` gives those of a measured format on this model, 0 where it can't be had.
QualityOrder order_by_quality(std::span<const RankedFormat> formats,
                              const std::function<double(const std::string&)>& bits_of);

}  // namespace kvant
