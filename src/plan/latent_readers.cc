// Multi-head latent attention: one stream per layer, the latent and the rotary key that all heads
// share, and V a range of it; beside it the keys of an indexer where the model has one.
#include <algorithm>

#include "plan/attention_heads.h"
#include "plan/layer_kinds.h"
#include "plan/readers.h"

namespace kvant {
namespace {

CacheStream one_head(StreamKind kind, int dim, int64_t window = 0, int tokens_per_entry = 1) {
  return {.kind = kind,
          .heads = 1,
          .k_dim = dim,
          .v_dim = 0,
          .window = window,
          .tokens_per_entry = tokens_per_entry};
}

Result<ModelLayer> read_latent_layer(const ConfigReader& config) {
  KVANT_ASSIGN(const int latent, config.require("kv_lora_rank", kDimRange));
  KVANT_ASSIGN(const int rope, config.require("qk_rope_head_dim", {0, kDimRange.high}));
  if (latent + rope > kDimRange.high)
    return out_of_range(config.where("kv_lora_rank"), latent, {1, kDimRange.high - rope});
  return ModelLayer{.streams = {one_head(StreamKind::kLatent, latent + rope)}, .state = {}};
}

// Layers that choose by the indexer of a layer before them have no index keys: indexer_types says
// so, or the letters of index_topk_pattern, or a frequency with an offset.
Result<std::vector<bool>> read_indexed_layers(const ConfigReader& config, int num_layers) {
  std::vector<bool> indexed(static_cast<size_t>(num_layers), true);
  KVANT_ASSIGN(const auto types, config.json().strings("indexer_types"));
  KVANT_ASSIGN(const auto letters, config.json().string("index_topk_pattern"));
  KVANT_ASSIGN(const int frequency, config.get("index_topk_freq", {0, kLayerRange.high}, 1));
  KVANT_ASSIGN(const int offset, config.get("index_skip_topk_offset", {0, kLayerRange.high}, 2));
  const size_t entries = types ? types->size() : letters ? letters->size() : indexed.size();
  if (entries < indexed.size()) {
    return corrupt(config.where(types ? "indexer_types" : "index_topk_pattern") + ": " +
                   std::to_string(entries) + " entries, wanted " + std::to_string(num_layers));
  }
  for (size_t i = 0; i < indexed.size(); ++i) {
    const int after = std::max(static_cast<int>(i) - offset + 1, 0);
    indexed[i] = types     ? (*types)[i] != "shared"
                 : letters ? (*letters)[i] != 'S'
                           : after % std::max(frequency, 1) == 0;
  }
  return indexed;
}

// What a compressor keeps of tokens that make no whole entry yet: K and score of each, in float32.
// With overlap both are twice as wide, and half of the last entry's tokens is read again.
int64_t overlapping_buffer(int64_t ratio, int64_t dim) {
  return 2 * ((ratio - 1) * 2 * dim + ratio * dim);
}

}  // namespace

Status read_latent(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const bool latent, config.boolean("use_mla", true));
  if (!latent) return read_attention(config, shape);
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_TRY(read_query_heads(config, shape).status());
  KVANT_ASSIGN(const ModelLayer layer, read_latent_layer(config));
  shape.layers.assign(static_cast<size_t>(num_layers), layer);
  KVANT_ASSIGN(const int index, config.get("index_head_dim", {0, kDimRange.high}, 0));
  if (index == 0) return {};
  KVANT_ASSIGN(const std::vector<bool> indexed, read_indexed_layers(config, num_layers));
  for (size_t i = 0; i < indexed.size(); ++i) {
    if (indexed[i]) shape.layers[i].streams.push_back(one_head(StreamKind::kIndexer, index));
  }
  return {};
}

Status read_longcat(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, require_integer(config.json(), "num_layers", kLayerRange));
  KVANT_TRY(read_query_heads(config, shape).status());
  KVANT_ASSIGN(const ModelLayer layer, read_latent_layer(config));
  shape.layers.assign(2 * static_cast<size_t>(num_layers), layer);
  return {};
}

// Layers are counted from 1 in linear_attn_config. Kimi Delta Attention keeps a matrix per head,
// and the last inputs of three short convolutions.
Status read_kimi_linear(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_TRY(read_query_heads(config, shape).status());
  KVANT_ASSIGN(const ModelLayer latent, read_latent_layer(config));
  KVANT_ASSIGN(const auto linear, config.json().object("linear_attn_config"));
  if (!linear) return corrupt(config.where("linear_attn_config") + " is missing");
  KVANT_ASSIGN(const int heads, require_integer(*linear, "num_heads", kHeadRange));
  KVANT_ASSIGN(const int dim, require_integer(*linear, "head_dim", kDimRange));
  KVANT_ASSIGN(const int kernel, require_integer(*linear, "short_conv_kernel_size", kSmallRange));
  KVANT_ASSIGN(const auto full, linear->integers("full_attn_layers"));
  if (!full) return corrupt(linear->where("full_attn_layers") + " is missing");

  const int64_t channels = int64_t{heads} * dim;
  const ModelLayer delta{.streams = {},
                         .state = {.recurrent_elements = channels * dim,
                                   .conv_elements = 3 * channels * (kernel - 1),
                                   .heads = heads}};
  shape.layers.assign(static_cast<size_t>(num_layers), delta);
  for (const int64_t layer : *full) {
    if (layer < 1 || layer > num_layers)
      return out_of_range(linear->where("full_attn_layers"), layer, {1, num_layers});
    shape.layers[static_cast<size_t>(layer - 1)] = latent;
  }
  return {};
}

// Every layer has a window of shared K and V, one head; compressing layers add an entry of it for
// every 4 or 128 tokens, and those that choose among entries an index key for each.
Status read_deepseek_v4(const ConfigReader& config, ModelShape& shape) {
  constexpr int kIndexedRatio = 4;
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_TRY(read_query_heads(config, shape).status());
  KVANT_ASSIGN(const int dim, config.require("head_dim", kDimRange));
  KVANT_ASSIGN(const int window, config.require("sliding_window", kWindowRange));
  KVANT_ASSIGN(const int index, config.require("index_head_dim", kDimRange));
  KVANT_ASSIGN(const auto ratios,
               read_layer_integers(config.json(), config, "compress_ratios", num_layers));
  if (!ratios) return corrupt(config.where("compress_ratios") + " is missing");
  for (const int64_t ratio : *ratios) {
    if (ratio < 0 || ratio > kDimRange.high)
      return out_of_range(config.where("compress_ratios"), ratio, {0, kDimRange.high});
    ModelLayer layer{.streams = {one_head(StreamKind::kSliding, dim, window)}, .state = {}};
    const int every = static_cast<int>(ratio);
    if (every > 0) layer.streams.push_back(one_head(StreamKind::kCompressed, dim, 0, every));
    if (every == kIndexedRatio) {
      layer.streams.push_back(one_head(StreamKind::kIndexer, index, 0, every));
      layer.state.recurrent_elements =
          overlapping_buffer(every, dim) + overlapping_buffer(every, index);
    } else if (every > 0) {
      layer.state.recurrent_elements = int64_t{2} * (every - 1) * dim;
    }
    shape.layers.push_back(std::move(layer));
  }
  return {};
}

}  // namespace kvant
