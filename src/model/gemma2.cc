// Gemma 2: soft caps on scores and logits, every other layer sliding.
#include <array>

#include "model/gemma.h"
#include "model/hf_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kTypes = {"gemma2"};
constexpr int kPeriod = 2;
constexpr int kLayersOf27B = 46;

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  KVANT_TRY(read_gemma_hf(config, kPeriod, spec));
  KVANT_ASSIGN(Rope rope, read_hf_rope(config, spec, spec.layers[0].key_dim));
  spec.ropes.push_back(std::move(rope));
  return {};
}

Status read_gguf(const GgufFile& file, DecoderSpec& spec) {
  const GgufKeys keys(file, "gemma2");
  KVANT_TRY(read_gemma_gguf(keys, kPeriod, kLayersOf27B, spec));
  KVANT_ASSIGN(Rope rope, read_gguf_rope(keys, spec, RopePairing::kHalves));
  spec.ropes.push_back(std::move(rope));
  return {};
}

}  // namespace

const Family& gemma2_family() {
  static constexpr Family kFamily = {"gemma2", kTypes, kTypes, read_hf, read_gguf};
  return kFamily;
}

}  // namespace kvant
