// What the Qwen families share: sliding windows that are off unless use_sliding_window says
// otherwise, and RoPE on halves.
#pragma once

#include "files/gguf.h"
#include "files/json.h"
#include "model/decoder_spec.h"

namespace kvant {

// Common fields, windows on the layers from max_window_layers on (or as layer_types says), one
// rope.
Status read_qwen_hf(const JsonObject& config, DecoderSpec& spec);
Status read_qwen_gguf(const GgufFile& file, std::string_view architecture, DecoderSpec& spec);

}  // namespace kvant
