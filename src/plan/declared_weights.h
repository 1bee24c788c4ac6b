// How a checkpoint stores its weights, as its configuration's quantization_config says.
#pragma once

#include "files/json.h"
#include "kvant/plan.h"

namespace kvant {

// Nothing where there is no quantization_config. A method that isn't known, or whose bits aren't
// clear, has 0 bits; the cache is known all the same, so nothing is refused here.
DeclaredWeights read_declared_weights(const JsonObject& config);

}  // namespace kvant
