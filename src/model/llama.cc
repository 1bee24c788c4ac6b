// Llama 1 to 3 and what is built like it (SmolLM, TinyLlama): the plain decoder, with optional
// biases and scaled RoPE.
#include <array>

#include "model/experts_config.h"
#include "model/families.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kTypes = {"llama"};

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  KVANT_TRY(read_hf_common(config, spec));
  KVANT_ASSIGN(const bool attention_bias, read_bool(config, "attention_bias", false));
  spec.query_key_value_bias = attention_bias;
  spec.attention_output_bias = attention_bias;
  KVANT_ASSIGN(spec.mlp_bias, read_bool(config, "mlp_bias", false));
  KVANT_ASSIGN(Rope rope, read_hf_rope(config, spec, spec.layers[0].key_dim));
  spec.ropes.push_back(std::move(rope));
  return {};
}

Status read_gguf(const GgufFile& file, DecoderSpec& spec) {
  const GgufKeys keys(file, "llama");
  KVANT_TRY(read_gguf_common(keys, spec));
  // The metadata doesn't say whether there are biases; the tensors do.
  spec.query_key_value_bias = file.tensor(spec.names.bias(Tensor::kQuery)) != nullptr;
  spec.attention_output_bias = file.tensor(spec.names.bias(Tensor::kAttentionOutput)) != nullptr;
  spec.mlp_bias = file.tensor(spec.names.bias(Tensor::kGate)) != nullptr;
  KVANT_ASSIGN(Rope rope, read_gguf_rope(keys, spec, RopePairing::kNeighbours));
  spec.ropes.push_back(std::move(rope));
  return read_gguf_experts(keys, spec);  // a Mixtral
}

}  // namespace

const Family& llama_family() {
  static constexpr Family kFamily = {"llama", kTypes, kTypes, read_hf, read_gguf};
  return kFamily;
}

}  // namespace kvant
