// How many parameters a decoder has, where its architecture's blocks are known.
#pragma once

#include "plan/config_reader.h"

namespace kvant {

struct ParameterCount {
  int64_t total = 0;  // 0: not known
  ParameterParts parts;
};

// Of the decoder alone, whose layers are read: embeddings, attention, feed-forward part and norms,
// without biases. Layers that predict further tokens aren't among them.
ParameterCount count_parameters(const ConfigReader& config, const ModelShape& shape);

}  // namespace kvant
