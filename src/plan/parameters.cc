#include "plan/parameters.h"

#include <array>

namespace kvant {
namespace {

constexpr Range kCountRange = {0, 1 << 26};
constexpr double kMostParameters = 1e15;  // exact in a double

// Sizes of one configuration; what is missing makes all of it unknown.
class Counter {
 public:
  Counter(const ConfigReader& config, const ModelShape& shape) : config_(config), shape_(shape) {}

  int64_t count() {
    hidden_ = need("hidden_size");
    const double vocabulary = need("vocab_size");
    double total = vocabulary * hidden_ * (tied() ? 1 : 2) + hidden_;
    if (config_.defaults().learned_positions)
      total += static_cast<double>(shape_.max_positions) * hidden_;
    for (size_t i = 0; i < shape_.layers.size(); ++i) {
      total += attention(shape_.layers[i]) + feed_forward(static_cast<int>(i)) + 2 * hidden_;
    }
    return known_ && total < kMostParameters ? static_cast<int64_t>(total) : 0;
  }

 private:
  double get(std::string_view name, double fallback) {
    const auto value = config_.find(name, kCountRange);
    if (!value.ok()) known_ = false;
    return value.ok() && *value ? static_cast<double>(**value) : fallback;
  }
  // The first that is there.
  double get_any(std::initializer_list<std::string_view> names, double fallback) {
    for (const std::string_view name : names) {
      if (config_.json().has(name)) return get(name, fallback);
    }
    return fallback;
  }
  double need(std::string_view name) {
    const double value = get(name, -1);
    if (value < 0) known_ = false;
    return value;
  }

  bool tied() {
    const auto said = config_.boolean("tie_word_embeddings", config_.defaults().tied);
    if (!said.ok()) known_ = false;
    return said.ok() && *said;
  }

  // Projections of q, k, v and the output.
  double attention(const ModelLayer& layer) {
    if (layer.streams.empty() || layer.shares >= 0) {
      known_ = false;
      return 0;
    }
    const CacheStream& stream = layer.streams[0];
    if (stream.kind == StreamKind::kLatent) return latent_attention(layer);
    const double heads = shape_.num_query_heads;
    return hidden_ *
           (heads * (stream.k_dim + stream.v_dim) + static_cast<double>(stream.entry_elements()));
  }

  double latent_attention(const ModelLayer& layer) {
    const double heads = shape_.num_query_heads, latent = need("kv_lora_rank");
    const double nope = need("qk_nope_head_dim"), rope = need("qk_rope_head_dim");
    const double value = need("v_head_dim"), query = get("q_lora_rank", 0);
    const double queries = heads * (nope + rope);
    double total = query > 0 ? query * (hidden_ + queries) : hidden_ * queries;
    total += hidden_ * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden_;
    if (layer.streams.size() > 1) {
      const double index_heads = need("index_n_heads"), index = need("index_head_dim");
      total += query * index_heads * index + hidden_ * (index + index_heads);
    }
    return total;
  }

  double feed_forward(int layer) {
    const double matrices = config_.defaults().feed_forward == FeedForward::kGated ? 3 : 2;
    const double experts = get_any({"num_local_experts", "num_experts", "n_routed_experts"}, 0);
    if (experts == 0 || is_dense(layer)) {
      const bool plain = config_.defaults().feed_forward == FeedForward::kPlain;
      const double width = get_any({"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"},
                                   plain ? 4 * hidden_ : -1);
      if (width < 0) known_ = false;
      return matrices * hidden_ * width;
    }
    const double width = get_any({"moe_intermediate_size", "intermediate_size"}, -1);
    if (width < 0) known_ = false;
    double shared = get("n_shared_experts", 0) * width;
    shared += get_any({"shared_expert_intermediate_size", "shared_intermediate_size"}, 0);
    return matrices * hidden_ * (experts * width + shared) + experts * hidden_;
  }

  // Layers without experts in a model that has some.
  bool is_dense(int layer) {
    if (layer < get("first_k_dense_replace", 0)) return true;
    const double step = get("decoder_sparse_step", 1);
    if (step > 1 && (layer + 1) % static_cast<int>(step) != 0) return true;
    if (!config_.json().is_list("mlp_only_layers")) return false;
    const auto dense = config_.json().integers("mlp_only_layers");
    if (!dense.ok() || !*dense) {
      known_ = false;
      return false;
    }
    for (const int64_t index : **dense) {
      if (index == layer) return true;
    }
    return false;
  }

  const ConfigReader& config_;
  const ModelShape& shape_;
  double hidden_ = 0;
  bool known_ = true;
};

}  // namespace

int64_t count_parameters(const ConfigReader& config, const ModelShape& shape) {
  const bool counted = config.defaults().feed_forward != FeedForward::kUnknown;
  if (!counted || config.place() == Place::kWrapped || shape.num_query_heads == 0) return 0;
  return Counter(config, shape).count();
}

}  // namespace kvant
