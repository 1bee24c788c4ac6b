// K and V per head: alike in all layers, mixed with windows or chunks, with other heads in some
// layers, or read from another layer.
#include <algorithm>
#include <array>

#include "plan/attention_heads.h"
#include "plan/layer_kinds.h"
#include "plan/readers.h"

namespace kvant {
namespace {

// Fields that say that layers keep something else than K and V per head. A reader that doesn't know
// one would size another model.
struct CacheField {
  std::string_view name;
  std::string_view meaning;
};
constexpr std::array<CacheField, 4> kLatentFields = {{{"kv_lora_rank", "latent attention"},
                                                      {"q_lora_rank", "latent attention"},
                                                      {"qk_rope_head_dim", "latent attention"},
                                                      {"index_head_dim", "a cache of index keys"}}};
// Of an architecture that isn't known.
constexpr std::array<CacheField, 23> kOtherFields = {
    {{"mamba_d_state", "state-space layers"},
     {"ssm_state_size", "state-space layers"},
     {"state_size", "state-space layers"},
     {"ssm_cfg", "state-space layers"},
     {"attention_types", "layers of several kinds"},
     {"attn_layer_period", "layers without attention"},
     {"attn_layer_indices", "layers without attention"},
     {"layers_block_type", "layers of several kinds"},
     {"block_types", "layers of several kinds"},
     {"hybrid_override_pattern", "layers of several kinds"},
     {"hybrid_layer_pattern", "layers of several kinds"},
     {"full_attention_interval", "linear-attention layers"},
     {"linear_num_value_heads", "linear-attention layers"},
     {"linear_attn_config", "linear-attention layers"},
     {"attn_type_list", "linear-attention layers"},
     {"conv_L_cache", "short-convolution layers"},
     {"lru_width", "recurrent layers"},
     {"compress_ratios", "compressed attention"},
     {"sparse_attention_config", "a cache of index keys"},
     {"block_configs", "heads that differ by layer"},
     {"cross_attention_layers", "cross-attention layers"},
     {"cla_share_factor", "layers that read another layer's cache"},
     {"global_head_dim", "heads that differ by layer"}}};

Status refuse_fields(const ConfigReader& config, std::span<const CacheField> fields) {
  for (const CacheField& field : fields) {
    const JsonObject& json = config.json();
    if (!json.has(field.name)) continue;
    std::string value;
    if (!json.is_list(field.name) && !json.is_string(field.name)) {
      const auto number = json.integer(field.name);
      if (number.ok() && number->value_or(0) == 0) continue;
      if (number.ok()) value = ": " + std::to_string(**number);
    }
    return unsupported(json.where(field.name) + value + " means " + std::string(field.meaning) +
                       ", which " + std::string(config.model_type()) + " isn't known to have");
  }
  return {};
}

// Heads that differ by layer, 0 of them in layers without attention.
Status apply_kv_by_layer(const ConfigReader& config, const AttentionHeads& heads,
                         ModelShape& shape) {
  if (heads.kv_by_layer.empty()) return {};
  if (heads.kv_by_layer.size() != shape.layers.size()) {
    return corrupt(config.where("num_key_value_heads") + ": " +
                   std::to_string(heads.kv_by_layer.size()) + " entries, wanted " +
                   std::to_string(shape.layers.size()));
  }
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    ModelLayer& layer = shape.layers[i];
    if (heads.kv_by_layer[i] == 0) layer.streams.clear();
    for (CacheStream& stream : layer.streams) stream.heads = heads.kv_by_layer[i];
  }
  return {};
}

// Full layers, all with these heads and one width of K and V.
Status assign_alike(const ConfigReader& config, int num_layers, AttentionHeads heads,
                    ModelShape& shape) {
  KVANT_ASSIGN(heads.k_dim, read_head_dim(config, heads.query));
  heads.v_dim = heads.k_dim;
  shape.layers.assign(static_cast<size_t>(num_layers), {.streams = {heads.full()}, .state = {}});
  return {};
}

}  // namespace

Status read_attention(const ConfigReader& config, ModelShape& shape) {
  KVANT_TRY(refuse_fields(config, kLatentFields));
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const std::vector<LayerKind> kinds, read_attention_kinds(config, num_layers));
  KVANT_ASSIGN(const int64_t window, config.window());
  const LayerParts parts{.full = heads.full(), .sliding = heads.sliding(window)};
  KVANT_TRY(build_layers(config, kinds, parts, shape));
  KVANT_TRY(apply_kv_by_layer(config, heads, shape));
  return share_last_layers(config, shape);
}

Status read_unknown(const ConfigReader& config, ModelShape& shape) {
  KVANT_TRY(refuse_fields(config, kOtherFields));
  KVANT_ASSIGN(const bool encoder_decoder, config.boolean("is_encoder_decoder", false));
  if (encoder_decoder) {
    return unsupported(config.where("is_encoder_decoder") + ": true, and " +
                       std::string(config.model_type()) + " isn't known");
  }
  config.note("the model type " + std::string(config.model_type()) +
              " isn't known: its layers are assumed to be a standard decoder's");
  KVANT_ASSIGN(const int latent, config.get("kv_lora_rank", {0, kDimRange.high}, 0));
  if (latent > 0) return read_latent(config, shape);
  KVANT_TRY(refuse_fields(config, kLatentFields));
  KVANT_ASSIGN(const int64_t window, config.window());
  if (window > 0 && !config.json().has("layer_types") &&
      !config.json().has("sliding_window_pattern")) {
    config.note("which layers have the sliding window of " + std::to_string(window) +
                " tokens isn't said: all are taken to see every token");
  }
  return read_attention(config, shape);
}

// Sliding layers may have heads of their own.
Status read_step3p5(const ConfigReader& config, ModelShape& shape) {
  KVANT_TRY(read_attention(config, shape));
  KVANT_ASSIGN(const auto other, config.json().object("attention_other_setting"));
  if (!other) return {};
  KVANT_ASSIGN(const auto query, find_integer(*other, "num_attention_heads", kHeadRange));
  KVANT_ASSIGN(const auto kv, find_integer(*other, "num_attention_groups", kHeadRange));
  KVANT_ASSIGN(const auto dim, find_integer(*other, "head_dim", kDimRange));
  if (kv && query) {
    KVANT_TRY(check_kv_heads(config, "attention_other_setting.num_attention_groups",
                             static_cast<int>(*kv), static_cast<int>(*query)));
  }
  for (ModelLayer& layer : shape.layers) {
    CacheStream& stream = layer.streams[0];
    if (stream.kind != StreamKind::kSliding) continue;
    if (kv) stream.heads = static_cast<int>(*kv);
    if (dim) stream.k_dim = stream.v_dim = static_cast<int>(*dim);
  }
  return {};
}

Status read_falcon(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  AttentionHeads heads;
  KVANT_ASSIGN(heads.query, read_query_heads(config, shape));
  KVANT_ASSIGN(const bool new_decoder, config.boolean("new_decoder_architecture", false));
  KVANT_ASSIGN(const bool multi_query, config.boolean("multi_query", true));
  KVANT_ASSIGN(const int grouped, config.get("num_key_value_heads", {1, heads.query}, heads.query));
  heads.kv = new_decoder ? grouped : multi_query ? 1 : heads.query;
  KVANT_TRY(check_kv_heads(config, "num_kv_heads", heads.kv, heads.query));
  return assign_alike(config, num_layers, heads, shape);
}

Status read_mpt(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  AttentionHeads heads;
  KVANT_ASSIGN(heads.query, read_query_heads(config, shape));
  KVANT_ASSIGN(const std::optional<JsonObject> attention, config.json().object("attn_config"));
  heads.kv = config.defaults().kv_heads > 0 ? config.defaults().kv_heads : heads.query;
  if (attention) {
    KVANT_ASSIGN(const std::optional<int64_t> kv,
                 find_integer(*attention, "kv_n_heads", {1, heads.query}));
    heads.kv = static_cast<int>(kv.value_or(heads.kv));
    KVANT_ASSIGN(const std::optional<bool> normed, attention->boolean("qk_ln"));
    shape.traits.qk_norm = normed.value_or(false);
  }
  KVANT_TRY(check_kv_heads(config, "attn_config.kv_n_heads", heads.kv, heads.query));
  return assign_alike(config, num_layers, heads, shape);
}

Status read_chatglm(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  AttentionHeads heads;
  KVANT_ASSIGN(heads.query, read_query_heads(config, shape));
  KVANT_ASSIGN(const bool grouped, config.boolean("multi_query_attention", false));
  heads.kv = heads.query;
  if (grouped) {
    KVANT_ASSIGN(heads.kv, config.get("multi_query_group_num", {1, heads.query}, 1));
    KVANT_TRY(check_kv_heads(config, "multi_query_group_num", heads.kv, heads.query));
  }
  return assign_alike(config, num_layers, heads, shape);
}

// With use_sliding_window the layers without RoPE slide.
Status read_smollm3(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const int64_t window, config.window());
  KVANT_ASSIGN(const int interval, config.get("no_rope_layer_interval", kLayerRange, 4));
  KVANT_ASSIGN(const auto ropes,
               read_layer_integers(config.json(), config, "no_rope_layers", num_layers));
  KVANT_ASSIGN(const std::vector<LayerKind> kinds,
               read_layer_kinds(config, "layer_types", num_layers, [&](int layer) {
                 const bool rope = ropes ? (*ropes)[static_cast<size_t>(layer)] != 0
                                         : (layer + 1) % interval != 0;
                 return rope ? LayerKind::kFull : LayerKind::kSliding;
               }));
  return build_layers(config, kinds, {.full = heads.full(), .sliding = heads.sliding(window)},
                      shape);
}

// Layers with RoPE attend in chunks; those without, every fourth unless no_rope_layers says so, see
// all tokens.
Status read_llama4(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(std::optional<int64_t> chunk, config.find("attention_chunk_size", kWindowRange));
  if (!chunk) chunk = config.class_default("attention_chunk_size", config.defaults().window);
  KVANT_ASSIGN(const int interval, config.get("no_rope_layer_interval", kLayerRange, 4));
  std::optional<std::vector<int64_t>> ropes;
  KVANT_ASSIGN(const auto listed, config.json().integers("no_rope_layers"));
  if (listed && !listed->empty()) {
    KVANT_ASSIGN(ropes, read_layer_integers(config.json(), config, "no_rope_layers", num_layers));
  }
  KVANT_ASSIGN(const std::vector<LayerKind> kinds,
               read_layer_kinds(config, "layer_types", num_layers, [&](int layer) {
                 const bool rope = ropes ? (*ropes)[static_cast<size_t>(layer)] != 0
                                         : (layer + 1) % interval != 0;
                 return rope ? LayerKind::kChunked : LayerKind::kFull;
               }));
  const LayerParts parts{.full = heads.full(), .chunked = heads.chunked(chunk.value_or(0))};
  return build_layers(config, kinds, parts, shape);
}

// Full layers have wider heads, and fewer of them where K and V are one projection; the last layer
// is always full.
Status read_gemma4(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads sliding, read_heads(config, shape));
  AttentionHeads full = sliding;
  KVANT_ASSIGN(full.k_dim, config.get("global_head_dim", kDimRange, 512));
  full.v_dim = full.k_dim;
  KVANT_ASSIGN(const bool one_projection, config.boolean("attention_k_eq_v", false));
  if (one_projection) {
    KVANT_ASSIGN(full.kv, config.get("num_global_key_value_heads", {1, full.query}, full.kv));
    KVANT_TRY(check_kv_heads(config, "num_global_key_value_heads", full.kv, full.query));
  }
  KVANT_ASSIGN(std::vector<LayerKind> kinds, read_attention_kinds(config, num_layers));
  kinds.back() = LayerKind::kFull;
  KVANT_ASSIGN(const int64_t window, config.window());
  const LayerParts parts{.full = full.full(), .sliding = sliding.sliding(window)};
  KVANT_TRY(build_layers(config, kinds, parts, shape));
  return share_last_layers(config, shape);
}

// hybrid_layer_pattern: 1 slides, with heads of its own.
Status read_mimo_v2(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads full, read_heads(config, shape));
  AttentionHeads sliding = full;
  KVANT_ASSIGN(sliding.query, config.get("swa_num_attention_heads", kHeadRange, full.query));
  KVANT_ASSIGN(sliding.kv, config.get("swa_num_key_value_heads", {1, sliding.query}, full.kv));
  KVANT_TRY(check_kv_heads(config, "swa_num_key_value_heads", sliding.kv, sliding.query));
  KVANT_ASSIGN(sliding.k_dim, config.get("swa_head_dim", kDimRange, full.k_dim));
  KVANT_ASSIGN(sliding.v_dim, config.get("swa_v_head_dim", kDimRange, full.v_dim));
  KVANT_ASSIGN(const auto pattern,
               read_layer_integers(config.json(), config, "hybrid_layer_pattern", num_layers));
  KVANT_ASSIGN(const int period, config.get("hybrid_block_size", kLayerRange, 6));
  KVANT_ASSIGN(const std::vector<LayerKind> kinds,
               read_layer_kinds(config, "layer_types", num_layers, [&](int layer) {
                 const bool slides = pattern ? (*pattern)[static_cast<size_t>(layer)] != 0
                                             : layer > 0 && (layer + 1) % period != 0;
                 return slides ? LayerKind::kSliding : LayerKind::kFull;
               }));
  KVANT_ASSIGN(const int64_t window, config.window());
  if (window > 0) {
    config.note("the window of " + std::to_string(window) +
                " tokens counts the query's own; some engines let it see one more");
  }
  return build_layers(config, kinds, {.full = full.full(), .sliding = sliding.sliding(window)},
                      shape);
}

// Cross-layer attention: of every cla_share_factor layers the first has a cache, the others read
// it.
Status read_hunyuan(const ConfigReader& config, ModelShape& shape) {
  KVANT_TRY(read_attention(config, shape));
  KVANT_ASSIGN(const bool shares, config.boolean("use_cla", false));
  if (!shares) return {};
  KVANT_ASSIGN(const int factor, config.get("cla_share_factor", kSmallRange, 1));
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    const size_t owner = i - i % static_cast<size_t>(factor);
    if (owner != i) shape.layers[i].shares = static_cast<int>(owner);
  }
  return {};
}

// block_configs: per layer how many query heads share a K and V head, or no attention at all.
Status read_nemotron_nas(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const auto blocks, config.json().objects("block_configs"));
  if (!blocks) return corrupt(config.where("block_configs") + " is missing");
  if (blocks->size() != static_cast<size_t>(num_layers)) {
    return corrupt(config.where("block_configs") + ": " + std::to_string(blocks->size()) +
                   " entries, wanted " + std::to_string(num_layers));
  }
  AttentionHeads heads;
  KVANT_ASSIGN(heads.query, read_query_heads(config, shape));
  KVANT_ASSIGN(heads.k_dim, read_head_dim(config, heads.query));
  heads.v_dim = heads.k_dim;
  for (const JsonObject& block : *blocks) {
    KVANT_ASSIGN(const std::optional<JsonObject> attention, block.object("attention"));
    if (!attention) return corrupt(block.where("attention") + " is missing");
    KVANT_ASSIGN(const std::optional<bool> none, attention->boolean("no_op"));
    KVANT_ASSIGN(const std::optional<bool> linear, attention->boolean("replace_with_linear"));
    ModelLayer layer;
    if (!none.value_or(false) && !linear.value_or(false)) {
      KVANT_ASSIGN(const int group,
                   require_integer(*attention, "n_heads_in_group", {1, heads.query}));
      if (heads.query % group != 0) {
        return corrupt(attention->where("n_heads_in_group") + ": " + std::to_string(group) +
                       ", wanted a divisor of the " + std::to_string(heads.query) +
                       " attention heads");
      }
      heads.kv = heads.query / group;
      KVANT_ASSIGN(const std::optional<int64_t> window,
                   find_integer(*attention, "window_length", kWindowRange));
      layer.streams = {heads.sliding(window.value_or(0))};
    }
    shape.layers.push_back(std::move(layer));
  }
  return {};
}

// Sparse layers choose blocks of K and V by keys of their own, one head of them.
Status read_minimax_m3(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  shape.layers.assign(static_cast<size_t>(num_layers), {.streams = {heads.full()}, .state = {}});
  KVANT_ASSIGN(const auto sparse, config.json().object("sparse_attention_config"));
  if (!sparse) return {};
  KVANT_ASSIGN(const auto chosen,
               read_layer_integers(*sparse, config, "sparse_attention_freq", num_layers));
  if (!chosen) return corrupt(sparse->where("sparse_attention_freq") + " is missing");
  KVANT_ASSIGN(const int dim, require_integer(*sparse, "sparse_index_dim", kDimRange));
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    if ((*chosen)[i] == 0) continue;
    shape.layers[i].streams.push_back({.kind = StreamKind::kIndexer, .heads = 1, .k_dim = dim});
  }
  return {};
}

}  // namespace kvant
