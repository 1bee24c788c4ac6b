// Weak layers: the few layers of a model that a format ruins while it serves the others well, and
// how to keep them. Said of formats that a comparison refuses, where a mean over the model shows
// only that something is wrong.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/open_model.h"

namespace kvant::cli {

struct WeakLayers {
  std::string format;       // as --kv names it
  std::vector<int> layers;  // in rising order
  double error = 0;         // of their attention's outputs, the least one
  double median_error = 0;  // of all layers
};

// Of each choice that has weak layers, and no more of them than a quarter of the model. Nothing for
// texts too short to tell.
Result<std::vector<WeakLayers>> find_weak_layers(const OpenModel& open,
                                                 std::span<const int32_t> tokens,
                                                 std::span<const CachePlanChoice* const> choices,
                                                 int chunk);

// One sentence, with the --kv-layers that keeps them.
std::string describe(const WeakLayers& weak);

}  // namespace kvant::cli
