// The longest context that a configuration says its model was made for.
#pragma once

#include "plan/config_reader.h"

namespace kvant {

// max_position_embeddings under all its names, 0 if it isn't said; where a RoPE scaling gives the
// length from before it, at least that times its factor. What may be final already is never
// multiplied.
Result<int64_t> read_max_positions(const ConfigReader& config);

}  // namespace kvant
