// Gemma 3 (text): q and k normalised per head, five sliding layers for each that sees all tokens,
// and a RoPE base for each kind; scaling touches the full layers only.
#include <array>

#include "model/gemma.h"
#include "model/hf_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kHfTypes = {"gemma3_text"};
constexpr std::array<std::string_view, 1> kGgufTypes = {"gemma3"};
constexpr int kPeriod = 6;
constexpr int kLayersOf27B = 62;
constexpr double kGlobalBase = 1000000;
constexpr double kLocalBase = 10000;

// Rope 0 turns the full layers, rope 1 the sliding ones.
void assign_ropes(Rope full, Rope sliding, DecoderSpec& spec) {
  spec.ropes.push_back(std::move(full));
  spec.ropes.push_back(std::move(sliding));
  for (LayerSpec& layer : spec.layers) layer.rope = layer.window > 0 ? 1 : 0;
}

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  spec.query_key_norm = true;
  KVANT_ASSIGN(const int period, read_int(config, "sliding_window_pattern", 1, 1 << 20, kPeriod));
  KVANT_TRY(read_gemma_hf(config, period, spec));
  const int head_dim = spec.layers[0].key_dim;
  KVANT_ASSIGN(Rope full, read_hf_rope(config, spec, head_dim, "full_attention"));
  if (config.has("rope_parameters")) {
    KVANT_ASSIGN(Rope sliding, read_hf_rope(config, spec, head_dim, "sliding_attention"));
    assign_ropes(std::move(full), std::move(sliding), spec);
    return {};
  }
  KVANT_ASSIGN(const double base, read_number(config, "rope_local_base_freq", kLocalBase));
  KVANT_ASSIGN(Rope sliding, make_rope(head_dim, base, {}));
  assign_ropes(std::move(full), std::move(sliding), spec);
  return {};
}

Status read_gguf(const GgufFile& file, DecoderSpec& spec) {
  spec.query_key_norm = true;
  const GgufKeys keys(file, "gemma3");
  KVANT_TRY(read_gemma_gguf(keys, kPeriod, kLayersOf27B, spec));
  KVANT_ASSIGN(Rope full, read_gguf_rope(keys, spec, RopePairing::kHalves, kGlobalBase));
  KVANT_ASSIGN(const double base, keys.number("rope.freq_base_swa", kLocalBase));
  KVANT_ASSIGN(Rope sliding, make_rope(2 * full.num_pairs(), base, {}));
  assign_ropes(std::move(full), std::move(sliding), spec);
  return {};
}

}  // namespace

const Family& gemma3_family() {
  static constexpr Family kFamily = {"gemma3", kHfTypes, kGgufTypes, read_hf, read_gguf};
  return kFamily;
}

}  // namespace kvant
