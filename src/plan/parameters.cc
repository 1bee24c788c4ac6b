#include "plan/parameters.h"

#include <algorithm>
#include <string>

namespace kvant {
namespace {

constexpr Range kCountRange = {0, 1 << 26};
constexpr double kMostParameters = 1e15;  // exact in a double

// Sizes of one configuration; what is missing makes all of it unknown.
class Counter {
 public:
  Counter(const ConfigReader& config, const ModelShape& shape) : config_(config), shape_(shape) {}

  ParameterCount count() {
    hidden_ = need("hidden_size", config_.defaults().hidden);
    const double vocabulary =
        config_.json().has("padded_vocab_size")
            ? need("padded_vocab_size")
            : need("vocab_size", static_cast<int>(config_.defaults().vocabulary));
    const bool is_tied = tied();
    double embeddings = vocabulary * hidden_;
    const double output = embeddings;
    if (config_.defaults().learned_positions)
      embeddings += static_cast<double>(shape_.max_positions) * hidden_;
    double total = embeddings + (is_tied ? 0 : output) + hidden_ + encoder();
    for (size_t i = 0; i < shape_.layers.size(); ++i) {
      total += mixer(shape_.layers[i]) + feed_forward(static_cast<int>(i)) + 2 * hidden_;
    }
    if (!known_ || total >= kMostParameters) return {};
    return {.total = static_cast<int64_t>(total),
            .parts = {.experts = static_cast<int64_t>(experts_),
                      .embeddings = static_cast<int64_t>(embeddings),
                      .output = static_cast<int64_t>(output),
                      .tied = is_tied}};
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
  // `of_class`: inside a wrapper, where the field is absent; 0: none.
  double need(std::string_view name, int of_class = 0) {
    const bool defaulted = config_.place() == Place::kWrapped && of_class > 0;
    const double value = get(name, defaulted ? of_class : -1);
    if (value < 0) known_ = false;
    return value;
  }
  // Of an object inside the configuration.
  double get_inner(std::string_view object, std::string_view name, double fallback) {
    const auto inner = config_.json().object(object);
    if (!inner.ok()) known_ = false;
    if (!inner.ok() || !*inner) return fallback;
    const auto value = find_integer(**inner, name, kCountRange);
    if (!value.ok()) known_ = false;
    return value.ok() && *value ? static_cast<double>(**value) : fallback;
  }

  bool tied() {
    const bool inside = config_.json().has("tie_word_embeddings");
    const auto said = (inside ? config_.json() : config_.root()).boolean("tie_word_embeddings");
    if (!said.ok()) known_ = false;
    return said.ok() && said->value_or(config_.defaults().tied);
  }

  // What mixes tokens: attention to all that the layer keeps, or what stands in its place.
  double mixer(const ModelLayer& layer) {
    if (layer.shares >= 0) known_ = false;
    if (layer.streams.empty()) return stateful(layer);
    if (layer.streams[0].kind == StreamKind::kLatent) return latent_attention(layer);
    double total = 0;
    for (const CacheStream& stream : layer.streams) total += attention(stream);
    return total;
  }

  // Projections of q, k, v and the output; some have a gate as wide as q.
  double attention(const CacheStream& stream) {
    const double heads = shape_.num_query_heads;
    const double queries = heads * stream.k_dim * (gated_delta() ? 2 : 1);
    return hidden_ *
           (queries + heads * stream.v_dim + static_cast<double>(stream.entry_elements()));
  }

  bool gated_delta() const { return config_.json().has("linear_num_value_heads"); }

  double stateful(const ModelLayer& layer) {
    if (gated_delta() && !layer.state.is_empty()) return delta_net();
    if (config_.json().has("conv_L_cache") && !layer.state.is_empty())  // a short convolution
      return hidden_ * (4 * hidden_ + get("conv_L_cache", 0));
    known_ = false;
    return 0;
  }

  // Projections of q, k, v and a gate, two numbers a head, the convolution and the output.
  double delta_net() {
    const double value_heads = need("linear_num_value_heads");
    const double keys = need("linear_num_key_heads") * need("linear_key_head_dim");
    const double values = value_heads * need("linear_value_head_dim");
    return hidden_ * (2 * keys + 3 * values + 2 * value_heads) +
           (2 * keys + values) * get("linear_conv_kernel_dim", 4);
  }

  double latent_attention(const ModelLayer& layer) {
    const double heads = shape_.num_query_heads, latent = need("kv_lora_rank");
    const double nope = need("qk_nope_head_dim"), rope = need("qk_rope_head_dim");
    const double value = get("v_head_dim", hidden_ / std::max(1.0, heads));
    const double query = get("q_lora_rank", 0);
    const double queries = heads * (nope + rope);
    double total = query > 0 ? query * (hidden_ + queries) : hidden_ * queries;
    total += hidden_ * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden_;
    if (layer.streams.size() > 1) {
      const double index_heads = need("index_n_heads"), index = need("index_head_dim");
      total += query * index_heads * index + hidden_ * (index + index_heads);
    }
    return total;
  }

  // Layers of T5's encoder, which have no cross attention.
  double encoder() {
    if (!config_.json().has("d_kv")) return 0;
    const double heads = shape_.num_query_heads;
    return need("num_hidden_layers") *
           (4 * hidden_ * heads * need("d_kv") + matrices() * hidden_ * need("d_ff") + 2 * hidden_);
  }

  double matrices() {
    const auto projection = config_.json().has("feed_forward_proj")
                                ? config_.json().string("feed_forward_proj")
                                : Result<std::optional<std::string>>(std::nullopt);
    if (!projection.ok()) known_ = false;
    if (projection.ok() && *projection) return (*projection)->starts_with("gated") ? 3 : 2;
    return config_.defaults().feed_forward == FeedForward::kPlain ? 2 : 3;
  }

  double feed_forward(int layer) {
    const double experts = get_any({"num_local_experts", "num_experts", "n_routed_experts"},
                                   get_inner("ffn_config", "moe_num_experts", 0));
    if (experts == 0 || is_dense(layer)) return matrices() * hidden_ * dense_width(experts);
    const double width = get_any({"moe_intermediate_size", "intermediate_size"},
                                 get_inner("ffn_config", "ffn_hidden_size", -1));
    if (width < 0) known_ = false;
    double shared = get("n_shared_experts", 0) * width;
    shared += get_any({"shared_expert_intermediate_size", "shared_intermediate_size"}, 0);
    if (config_.json().has("intermediate_size_mlp")) shared += width;  // Llama 4 has one
    experts_ += matrices() * hidden_ * experts * width;
    return matrices() * hidden_ * (experts * width + shared) + experts * hidden_;
  }

  double dense_width(double experts) {
    const FeedForward kind = config_.defaults().feed_forward;
    double width = -1;
    if (experts > 0) width = get("intermediate_size_mlp", -1);
    if (width < 0) {
      width = get_any({"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"},
                      kind == FeedForward::kPlain ? get("expansion_ratio", 4) * hidden_ : -1);
    }
    if (width < 0) known_ = false;
    if (kind == FeedForward::kHalved) return width / 2;
    // Two thirds, up to a multiple of 256.
    if (kind == FeedForward::kAdjusted) {
      return static_cast<double>((static_cast<int64_t>(width) * 2 / 3 + 255) / 256 * 256);
    }
    return width;
  }

  // Layers without experts in a model that has some.
  bool is_dense(int layer) {
    if (layer < get("first_k_dense_replace", 0)) return true;
    const double step = get_any({"decoder_sparse_step", "interleave_moe_layer_step"}, 1);
    if (step > 1 && (layer + 1) % static_cast<int>(step) != 0) return true;
    if (config_.json().is_list("moe_layer_freq")) {
      const std::vector<int64_t> sparse = list("moe_layer_freq");
      return static_cast<size_t>(layer) < sparse.size() && sparse[static_cast<size_t>(layer)] == 0;
    }
    const std::vector<int64_t> dense = list("mlp_only_layers");
    return std::find(dense.begin(), dense.end(), layer) != dense.end();
  }

  std::vector<int64_t> list(std::string_view name) {
    if (!config_.json().is_list(name)) return {};
    const auto values = config_.json().integers(name);
    if (values.ok() && *values) return **values;
    known_ = false;
    return {};
  }

  const ConfigReader& config_;
  const ModelShape& shape_;
  double hidden_ = 0, experts_ = 0;
  bool known_ = true;
};

}  // namespace

ParameterCount count_parameters(const ConfigReader& config, const ModelShape& shape) {
  if (config.defaults().feed_forward == FeedForward::kUnknown || shape.num_query_heads == 0)
    return {};
  return Counter(config, shape).count();
}

}  // namespace kvant
