// DeepSeek-V2: multi-head latent attention, and experts beside shared ones on all layers but the
// first few.
#include <array>
#include <cmath>

#include "model/experts_config.h"
#include "model/families.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace kvant {
namespace {

constexpr std::array<std::string_view, 1> kHfTypes = {"deepseek_v2"};
constexpr std::array<std::string_view, 1> kGgufTypes = {"deepseek2"};
constexpr int kMaxWidth = 1 << 20;

// The cache of a layer is one stream: the normed latent, then the rotary key that all heads share.
void set_layers(DecoderSpec& spec) {
  const LatentSpec& latent = spec.latent;
  for (LayerSpec& layer : spec.layers) {
    layer.attention = AttentionKind::kLatent;
    layer.num_kv_heads = 1;
    layer.key_dim = latent.kv_rank + latent.rope_dim;
    layer.value_dim = latent.kv_rank;
  }
}

// 1/√(width of a decompressed key), times the square of YaRN's magnitude for all channels.
float score_scale(const LatentSpec& latent, double magnitude) {
  const double width = latent.nope_dim + latent.rope_dim;
  return static_cast<float>(magnitude * magnitude / std::sqrt(width));
}

Result<double> read_hf_magnitude(const JsonObject& config) {
  const std::string_view key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  KVANT_ASSIGN(const std::optional<JsonObject> scaling, config.object(key));
  if (!scaling) return 1.0;
  KVANT_ASSIGN(const double factor, read_number(*scaling, "factor", 1));
  KVANT_ASSIGN(const double mscale, read_number(*scaling, "mscale_all_dim", 0));
  return factor <= 1 ? 1.0 : 1 + 0.1 * mscale * std::log(factor);
}

Status read_hf_latent(const JsonObject& config, LatentSpec& latent) {
  KVANT_ASSIGN(latent.query_rank, read_int(config, "q_lora_rank", 0, kMaxWidth, 0));
  KVANT_ASSIGN(latent.kv_rank, read_int(config, "kv_lora_rank", 1, kMaxWidth));
  KVANT_ASSIGN(latent.rope_dim, read_int(config, "qk_rope_head_dim", 2, kMaxWidth));
  KVANT_ASSIGN(latent.nope_dim, read_int(config, "qk_nope_head_dim", 1, kMaxWidth));
  KVANT_ASSIGN(latent.value_dim, read_int(config, "v_head_dim", 1, kMaxWidth));
  return {};
}

// `value` of a text field must be one of `known`.
Status check_choice(const JsonObject& config, std::string_view key, std::string_view value,
                    std::span<const std::string_view> known) {
  std::string names;
  for (std::string_view name : known) {
    if (name == value) return {};
    names += (names.empty() ? "" : " or ") + std::string(name);
  }
  return unsupported(config.where(key) + ": '" + std::string(value) + "', wanted " + names);
}

constexpr std::array<std::string_view, 1> kScorings = {"softmax"};
constexpr std::array<std::string_view, 2> kMethods = {"greedy", "group_limited_greedy"};

Status read_hf_experts(const JsonObject& config, DecoderSpec& spec) {
  ExpertsSpec& experts = spec.experts;
  KVANT_ASSIGN(experts.num_experts, read_int(config, "n_routed_experts", 0, kMaxExperts, 0));
  if (experts.num_experts == 0) return {};
  KVANT_ASSIGN(experts.top_k, read_int(config, "num_experts_per_tok", 1, experts.num_experts));
  KVANT_ASSIGN(experts.expert_size, read_int(config, "moe_intermediate_size", 1, kMaxWidth));
  KVANT_ASSIGN(const int shared, read_int(config, "n_shared_experts", 0, kMaxExperts, 0));
  experts.shared_size = shared * experts.expert_size;
  KVANT_ASSIGN(const double scale, read_number(config, "routed_scaling_factor", 1));
  experts.scale = static_cast<float>(scale);
  KVANT_ASSIGN(const bool normalize, read_bool(config, "norm_topk_prob", false));
  if (normalize) return unsupported(config.where("norm_topk_prob") + ": true, wanted false");
  experts.normalize_top_k = false;
  KVANT_ASSIGN(const std::optional<std::string> scoring, config.string("scoring_func"));
  KVANT_TRY(check_choice(config, "scoring_func", scoring.value_or("softmax"), kScorings));
  KVANT_ASSIGN(const std::optional<std::string> method, config.string("topk_method"));
  KVANT_TRY(check_choice(config, "topk_method", method.value_or("greedy"), kMethods));
  if (method == kMethods[1]) {
    KVANT_ASSIGN(experts.num_groups, read_int(config, "n_group", 1, experts.num_experts));
    KVANT_ASSIGN(experts.top_groups, read_int(config, "topk_group", 1, experts.num_groups));
    if (experts.num_experts % experts.num_groups != 0) {
      return corrupt(config.where("n_group") + ": " + std::to_string(experts.num_groups) +
                     ", wanted a divisor of the " + std::to_string(experts.num_experts) +
                     " experts");
    }
  }
  KVANT_ASSIGN(const int first, read_int(config, "first_k_dense_replace", 0, kMaxWidth, 0));
  for (size_t i = static_cast<size_t>(first); i < spec.layers.size(); ++i) {
    spec.layers[i].feed_forward = FeedForwardKind::kExperts;
  }
  return {};
}

Status read_hf(const JsonObject& config, DecoderSpec& spec) {
  KVANT_TRY(read_hf_common(config, spec));
  KVANT_TRY(read_hf_latent(config, spec.latent));
  set_layers(spec);
  KVANT_TRY(read_hf_experts(config, spec));
  KVANT_ASSIGN(Rope rope, read_hf_rope(config, spec, spec.latent.rope_dim));
  rope.pairing = RopePairing::kNeighbours;
  spec.ropes.push_back(std::move(rope));
  KVANT_ASSIGN(const double magnitude, read_hf_magnitude(config));
  spec.attention_scale = score_scale(spec.latent, magnitude);
  return {};
}

// Files from before llama.cpp kept K and V of a layer as one latent head state the decompressed
// widths as key_length and value_length; later ones as key_length_mla and value_length_mla.
Status read_gguf_latent(const GgufKeys& keys, LatentSpec& latent) {
  KVANT_ASSIGN(latent.query_rank, keys.integer("attention.q_lora_rank", 0, kMaxWidth, 0));
  KVANT_ASSIGN(latent.kv_rank, keys.integer("attention.kv_lora_rank", 1, kMaxWidth));
  KVANT_ASSIGN(latent.rope_dim, keys.integer("rope.dimension_count", 2, kMaxWidth));
  KVANT_ASSIGN(const int old_key, keys.integer("attention.key_length", 1, kMaxWidth));
  KVANT_ASSIGN(const int old_value, keys.integer("attention.value_length", 1, kMaxWidth));
  KVANT_ASSIGN(const int key_dim, keys.integer("attention.key_length_mla", 1, kMaxWidth, old_key));
  KVANT_ASSIGN(latent.value_dim,
               keys.integer("attention.value_length_mla", 1, kMaxWidth, old_value));
  latent.nope_dim = key_dim - latent.rope_dim;
  if (latent.nope_dim < 1) {
    return corrupt(keys.where("attention.key_length") + ": " + std::to_string(key_dim) +
                   ", wanted more than the rotary " + std::to_string(latent.rope_dim));
  }
  return {};
}

Status read_gguf(const GgufFile& file, DecoderSpec& spec) {
  const GgufKeys keys(file, "deepseek2");
  KVANT_TRY(read_gguf_common(keys, spec));
  KVANT_TRY(read_gguf_latent(keys, spec.latent));
  set_layers(spec);
  KVANT_TRY(read_gguf_experts(keys, spec));
  spec.experts.normalize_top_k = false;
  KVANT_ASSIGN(Rope rope, read_gguf_rope(keys, spec, RopePairing::kNeighbours));
  rope.attention_factor =
      1;  // the format assumes mscale = mscale_all_dim: YaRN's magnitude is all in the score scale
  spec.ropes.push_back(std::move(rope));
  KVANT_ASSIGN(const double factor, keys.number("rope.scaling.factor", 1));
  KVANT_ASSIGN(const double log_multiplier, keys.number("rope.scaling.yarn_log_multiplier", 0));
  spec.attention_scale =
      score_scale(spec.latent, factor <= 1 ? 1.0 : 1 + log_multiplier * std::log(factor));
  return {};
}

}  // namespace

const Family& deepseek2_family() {
  static constexpr Family kFamily = {"deepseek_v2", kHfTypes, kGgufTypes, read_hf, read_gguf};
  return kFamily;
}

}  // namespace kvant
