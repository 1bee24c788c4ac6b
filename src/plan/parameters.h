// How many parameters a configuration's model has.
#pragma once

#include "plan/config_reader.h"

namespace kvant {

// Of decoders whose feed-forward part the architecture's row knows, dense or of experts; 0 for all
// others, inside a wrapper (whose other parts aren't counted), and where a field is missing. Biases
// are left out, and so are layers that predict further tokens.
int64_t count_parameters(const ConfigReader& config, const ModelShape& shape);

}  // namespace kvant
