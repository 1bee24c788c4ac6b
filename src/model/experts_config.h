// Experts in GGUF metadata, which all architectures write alike.
#pragma once

#include "model/decoder_spec.h"
#include "model/gguf_config.h"

namespace kvant {

inline constexpr int kMaxExperts = 1 << 14;

// Experts from expert_count, expert_used_count, …, on the layers that have a router. Nothing if
// there are none.
Status read_gguf_experts(const GgufKeys& keys, DecoderSpec& spec);

}  // namespace kvant
