// Phi 3, 3.5 and 4-mini: Q, K and V in one projection, gate and up in another, LongRoPE, a rotary
// part of the head in some. LongRoPE's short factors hold for contexts up to the original length,
// its long ones beyond; one of the two is taken for all positions, by ModelOptions::context,
// because a cache can't change them afterwards.
#include <array>

#include "model/families.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kTypes = {"phi3"};

void set_fused(DecoderSpec& spec) {
  spec.fused_query_key_value = true;
  spec.fused_gate_up = true;
}

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  set_fused(spec);
  return read_hf_sliding_decoder(config, /*absent=*/0, spec);
}

Status read_gguf(const GgufFile& file, DecoderSpec& spec) {
  const GgufKeys keys(file, "phi3");
  KVANT_TRY(read_gguf_common(keys, spec));
  set_fused(spec);
  KVANT_ASSIGN(const int window, read_gguf_window(keys));
  for (LayerSpec& layer : spec.layers) layer.window = window;
  KVANT_ASSIGN(Rope rope, read_gguf_rope(keys, spec, RopePairing::kHalves));
  spec.ropes.push_back(std::move(rope));
  return {};
}

}  // namespace

const Family& phi3_family() {
  static constexpr Family kFamily = {"phi3", kTypes, kTypes, read_hf, read_gguf};
  return kFamily;
}

}  // namespace kvant
