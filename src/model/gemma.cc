#include "model/gemma.h"

#include <cmath>

#include "model/hf_config.h"

namespace kvant {
namespace {

constexpr int kDefaultWindow = 4096;  // of Transformers' Gemma2Config and Gemma3TextConfig

void set_common(DecoderSpec& spec) {
  spec.activation = Activation::kGeluTanh;
  spec.post_norms = true;
  spec.tied_embeddings = true;
}

// Hidden sizes are integers, so the scale is the float nearest to the root, as in the reference.
float embedding_scale(const DecoderSpec& spec) {
  return std::sqrt(static_cast<float>(spec.hidden_size));
}

bool slides(int layer, int period) { return (layer + 1) % period != 0; }

Result<float> read_cap(const JsonObject& config, std::string_view key) {
  KVANT_ASSIGN(const double cap, read_number(config, key, 0));
  if (cap < 0)
    return corrupt(config.where(key) + ": " + std::to_string(cap) +
                   ", wanted a positive number or null");
  return static_cast<float>(cap);
}

}  // namespace

Status read_gemma_hf(const JsonObject& config, int period, DecoderSpec& spec) {
  set_common(spec);
  KVANT_TRY(read_hf_common(config, spec));
  spec.norm_offset = 1;
  spec.embedding_scale = embedding_scale(spec);
  KVANT_ASSIGN(const double scalar, read_number(config, "query_pre_attn_scalar", 256));
  KVANT_TRY(check_positive(config.where("query_pre_attn_scalar"), scalar));
  spec.attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  KVANT_ASSIGN(spec.attention_soft_cap, read_cap(config, "attn_logit_softcapping"));
  KVANT_ASSIGN(spec.logit_soft_cap, read_cap(config, "final_logit_softcapping"));
  KVANT_ASSIGN(spec.query_key_value_bias, read_bool(config, "attention_bias", false));
  spec.attention_output_bias = spec.query_key_value_bias;
  KVANT_ASSIGN(const bool bidirectional, read_bool(config, "use_bidirectional_attention", false));
  if (bidirectional)
    return unsupported(config.where("use_bidirectional_attention") + ": true, wanted false");
  KVANT_ASSIGN(const int window, read_hf_window(config, kDefaultWindow));
  KVANT_TRY(assign_windows(
      config, window, [period](int layer) { return slides(layer, period); }, spec));
  spec.names.set(Tensor::kFeedForwardNorm, "model.layers.{}.pre_feedforward_layernorm");
  return {};
}

Status read_gemma_gguf(const GgufKeys& keys, int period, int wide_layers, DecoderSpec& spec) {
  set_common(spec);
  KVANT_TRY(read_gguf_common(keys, spec));
  spec.embedding_scale = embedding_scale(spec);
  const bool wide = spec.layers.size() == static_cast<size_t>(wide_layers);
  const int width = wide ? spec.hidden_size / spec.num_query_heads : spec.layers[0].key_dim;
  KVANT_ASSIGN(const double scale,
               keys.number("attention.scale", 1 / std::sqrt(static_cast<double>(width))));
  KVANT_ASSIGN(const double attention_cap, keys.number("attn_logit_softcapping", 0));
  KVANT_ASSIGN(const double logit_cap, keys.number("final_logit_softcapping", 0));
  spec.attention_scale = static_cast<float>(scale);
  spec.attention_soft_cap = static_cast<float>(attention_cap);
  spec.logit_soft_cap = static_cast<float>(logit_cap);
  KVANT_ASSIGN(const int window, read_gguf_window(keys));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    spec.layers[i].window = slides(static_cast<int>(i), period) ? window : 0;
  }
  return {};
}

}  // namespace kvant
