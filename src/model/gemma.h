// What Gemma 2 and Gemma 3 share: scaled embeddings that are also the output matrix, four norms a
// layer around 1 + w, GELU, a score scale of its own, and layers that alternate between a window
// and all tokens.
#pragma once

#include "model/families.h"
#include "model/gguf_config.h"

namespace kvant {

// Everything but ropes. `period`: of that many layers the last one sees all tokens.
Status read_gemma_hf(const JsonObject& config, int period, DecoderSpec& spec);

// Likewise. A file that doesn't state the score scale has 1/√key_dim, but for the one model of the
// series with `wide_layers` layers, where it is 1/√(hidden size / heads).
Status read_gemma_gguf(const GgufKeys& keys, int period, int wide_layers, DecoderSpec& spec);

}  // namespace kvant
