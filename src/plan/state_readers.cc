// State-space, linear-attention and short-convolution layers: constant state, alone or between
// layers with attention. Of a convolution over d_conv columns the last d_conv − 1 are kept.
#include <algorithm>
#include <array>
#include <numeric>

#include "files/mapped_file.h"
#include "plan/attention_heads.h"
#include "plan/layer_kinds.h"
#include "plan/readers.h"

namespace kvant {
namespace {

// Bytes of an element of the recurrent state, where the configuration says: float32 otherwise.
Result<int> recurrent_bytes(const ConfigReader& config) {
  for (const char* name : {"mamba_ssm_cache_dtype", "mamba_ssm_dtype"}) {
    KVANT_ASSIGN(const std::optional<std::string> dtype, config.json().string(name));
    const std::string said = dtype.value_or("auto");
    if (said == "auto") continue;
    if (said == "float32") return 4;
    if (said == "bfloat16" || said == "float16") return 2;
    return unsupported(config.where(name) + ": " + in_quotes(said) +
                       ", wanted float32, bfloat16 or float16");
  }
  return 4;
}

// Mamba: a state of its own for every channel.
ConstantState channel_state(int64_t channels, int d_state, int d_conv) {
  return {.recurrent_elements = channels * d_state,
          .conv_elements = channels * (d_conv - 1),
          .heads = static_cast<int>(channels)};
}

// Mamba-2: a matrix per head; the convolution runs over the heads' channels and the groups' B and
// C.
ConstantState head_state(int64_t channels, int heads, int groups, int d_state, int d_conv) {
  return {.recurrent_elements = channels * d_state,
          .conv_elements = (channels + int64_t{2} * groups * d_state) * (d_conv - 1),
          .heads = heads};
}

std::vector<LayerKind> every_layer(int num_layers, LayerKind kind) {
  return std::vector<LayerKind>(static_cast<size_t>(num_layers), kind);
}

// `kind` on the layers of a list of indices, counted from 0.
Status mark_layers(const ConfigReader& config, std::string_view name, LayerKind kind,
                   std::vector<LayerKind>& kinds) {
  KVANT_ASSIGN(const auto layers, config.json().integers(name));
  if (!layers) return {};
  const auto num_layers = static_cast<int64_t>(kinds.size());
  for (const int64_t layer : *layers) {
    if (layer < 0 || layer >= num_layers)
      return out_of_range(config.where(name), layer, {0, num_layers - 1});
    kinds[static_cast<size_t>(layer)] = kind;
  }
  return {};
}

// expand · hidden size.
Result<int64_t> read_channels(const ConfigReader& config, std::string_view expand) {
  KVANT_ASSIGN(const int hidden, config.hidden_size());
  KVANT_ASSIGN(const int factor, config.get_noted(expand, {1, 64}, 2));
  return int64_t{factor} * hidden;
}

// mamba_n_heads, or the channels by the width of a head; 0 where neither is given and the class's
// number doesn't divide the channels.
Result<int> read_state_heads(const ConfigReader& config, int64_t channels) {
  constexpr int kOfClass = 128;
  const auto check = [&](const char* name, int64_t value) -> Status {
    if (channels % value == 0) return {};
    return corrupt(config.where(name) + ": " + std::to_string(value) +
                   ", wanted a divisor of the " + std::to_string(channels) + " channels");
  };
  KVANT_ASSIGN(const auto heads, config.find("mamba_n_heads", kHeadRange));
  if (heads) KVANT_TRY(check("mamba_n_heads", *heads));
  if (heads) return static_cast<int>(*heads);
  KVANT_ASSIGN(const auto width, config.find("mamba_headdim", kDimRange));
  if (width) KVANT_TRY(check("mamba_headdim", *width));
  if (width) return static_cast<int>(channels / *width);
  if (channels % kOfClass != 0) return 0;
  config.note_class_value("mamba_n_heads", kOfClass);
  return kOfClass;
}

// Names that the fields of Mamba-2 have inside of a hybrid model.
Result<ConstantState> read_hybrid_state(const ConfigReader& config, int64_t channels) {
  KVANT_ASSIGN(const int heads, read_state_heads(config, channels));
  KVANT_ASSIGN(const int groups, config.get_noted("mamba_n_groups", kHeadRange, 1));
  KVANT_ASSIGN(const int d_state, config.get_noted("mamba_d_state", kDimRange, 256));
  KVANT_ASSIGN(const int d_conv, config.get_noted("mamba_d_conv", kSmallRange, 4));
  ConstantState state = head_state(channels, heads, groups, d_state, d_conv);
  KVANT_ASSIGN(state.recurrent_bytes, recurrent_bytes(config));
  return state;
}

}  // namespace

Status read_mamba(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const int64_t channels, read_channels(config, "expand"));
  KVANT_ASSIGN(const int d_state, config.get_noted("state_size", kDimRange, 16));
  KVANT_ASSIGN(const int d_conv, config.get_noted("conv_kernel", kSmallRange, 4));
  const LayerParts parts{.state = channel_state(channels, d_state, d_conv)};
  return build_layers(config, every_layer(num_layers, LayerKind::kState), parts, shape);
}

Status read_mamba2(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const int64_t channels, read_channels(config, "expand"));
  KVANT_ASSIGN(const int heads, config.require("num_heads", kHeadRange));
  KVANT_ASSIGN(const int dim, config.require("head_dim", kDimRange));
  if (int64_t{heads} * dim != channels) {
    return corrupt(config.where("num_heads") + ": " + std::to_string(heads) + " of " +
                   std::to_string(dim) + " channels, wanted " + std::to_string(channels) +
                   " channels in all");
  }
  KVANT_ASSIGN(const int groups, config.get_noted("n_groups", kHeadRange, 8));
  KVANT_ASSIGN(const int d_state, config.get_noted("state_size", kDimRange, 128));
  KVANT_ASSIGN(const int d_conv, config.get_noted("conv_kernel", kSmallRange, 4));
  const LayerParts parts{.state = head_state(channels, heads, groups, d_state, d_conv)};
  return build_layers(config, every_layer(num_layers, LayerKind::kState), parts, shape);
}

Status read_jamba(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  int period = 8, offset = 4;  // the class's
  if (!config.json().has("layer_types")) {
    KVANT_ASSIGN(period, config.get_noted("attn_layer_period", kLayerRange, period));
    KVANT_ASSIGN(offset, config.get_noted("attn_layer_offset", {0, period - 1},
                                          std::min(offset, period - 1)));
  }
  KVANT_ASSIGN(const int64_t channels, read_channels(config, "mamba_expand"));
  KVANT_ASSIGN(const int d_state, config.get_noted("mamba_d_state", kDimRange, 16));
  KVANT_ASSIGN(const int d_conv, config.get_noted("mamba_d_conv", kSmallRange, 4));
  KVANT_ASSIGN(const std::vector<LayerKind> kinds,
               read_layer_kinds(config, "layer_types", num_layers, [&](int layer) {
                 return layer % period == offset ? LayerKind::kFull : LayerKind::kState;
               }));
  const LayerParts parts{.full = heads.full(), .state = channel_state(channels, d_state, d_conv)};
  return build_layers(config, kinds, parts, shape);
}

// Granite 4.0 H, Bamba: Mamba-2 but for the layers that layer_types or attn_layer_indices name.
Status read_granite_hybrid(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const int64_t channels, read_channels(config, "mamba_expand"));
  KVANT_ASSIGN(const ConstantState state, read_hybrid_state(config, channels));
  KVANT_ASSIGN(
      std::vector<LayerKind> kinds,
      read_layer_kinds(config, "layer_types", num_layers, [](int) { return LayerKind::kState; }));
  KVANT_TRY(mark_layers(config, "attn_layer_indices", LayerKind::kFull, kinds));
  return build_layers(config, kinds, {.full = heads.full(), .state = state}, shape);
}

// Attention and Mamba-2 side by side in every layer.
Status read_falcon_h1(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const std::optional<int64_t> given, config.find("mamba_d_ssm", kHiddenRange));
  int64_t channels = given.value_or(0);
  if (!given) {
    KVANT_ASSIGN(channels, read_channels(config, "mamba_expand"));
  }
  KVANT_ASSIGN(const ConstantState state, read_hybrid_state(config, channels));
  const LayerParts parts{.full = heads.full(), .state = state};
  return build_layers(config, every_layer(num_layers, LayerKind::kBoth), parts, shape);
}

// hybrid_override_pattern: M Mamba-2, * attention, − and E feed-forward layers without a cache.
Status read_nemotron_h(const ConfigReader& config, ModelShape& shape) {
  constexpr std::string_view kPattern = "hybrid_override_pattern";
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const int state_heads, config.require("mamba_num_heads", kHeadRange));
  KVANT_ASSIGN(const int state_dim, config.require("mamba_head_dim", kDimRange));
  KVANT_ASSIGN(const int d_state, config.require("ssm_state_size", kDimRange));
  KVANT_ASSIGN(const int groups, config.get_noted("n_groups", kHeadRange, 8));
  KVANT_ASSIGN(const int d_conv, config.get_noted("conv_kernel", kSmallRange, 4));
  LayerParts parts{
      .full = heads.full(),
      .state = head_state(int64_t{state_heads} * state_dim, state_heads, groups, d_state, d_conv)};
  KVANT_ASSIGN(parts.state.recurrent_bytes, recurrent_bytes(config));

  KVANT_ASSIGN(const std::optional<std::string> pattern, config.json().string(kPattern));
  if (!pattern && !config.json().has("layers_block_type"))
    return corrupt(config.where(kPattern) + " is missing");
  if (pattern && pattern->size() != static_cast<size_t>(num_layers)) {
    return corrupt(config.where(kPattern) + ": " + std::to_string(pattern->size()) +
                   " letters, wanted " + std::to_string(num_layers));
  }
  if (pattern && pattern->find_first_not_of("M*-E") != std::string::npos)
    return unsupported(config.where(kPattern) + ": " + in_quotes(*pattern) +
                       ", wanted letters M, *, - and E");
  KVANT_ASSIGN(const std::vector<LayerKind> kinds,
               read_layer_kinds(config, "layers_block_type", num_layers, [&](int layer) {
                 const char letter = (*pattern)[static_cast<size_t>(layer)];
                 return letter == 'M'   ? LayerKind::kState
                        : letter == '*' ? LayerKind::kFull
                                        : LayerKind::kNone;
               }));
  return build_layers(config, kinds, parts, shape);
}

// Blocks of attention that are shared as weights have a cache at every place where they stand, of
// heads twice as wide: they see two hidden vectors side by side.
Status read_zamba2(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  AttentionHeads heads;
  KVANT_ASSIGN(heads.query, read_query_heads(config, shape));
  KVANT_ASSIGN(heads.kv, config.get("num_key_value_heads", {1, heads.query}, heads.query));
  KVANT_TRY(check_kv_heads(config, "num_key_value_heads", heads.kv, heads.query));
  KVANT_ASSIGN(const int hidden, config.hidden_size());
  KVANT_ASSIGN(const auto declared, find_integer(config.json(), "attention_head_dim", kDimRange));
  heads.k_dim = declared ? static_cast<int>(*declared) : 2 * hidden / heads.query;
  if (heads.k_dim < 1 || heads.k_dim > kDimRange.high)
    return out_of_range(config.where("attention_head_dim"), heads.k_dim, kDimRange);
  if (!declared) {
    config.note("attention_head_dim isn't given: 2 · hidden size / heads = " +
                std::to_string(heads.k_dim));
  }
  heads.v_dim = heads.k_dim;
  KVANT_ASSIGN(const int64_t channels, read_channels(config, "mamba_expand"));
  KVANT_ASSIGN(const ConstantState state, read_hybrid_state(config, channels));
  if (!config.json().has("layers_block_type") && !config.json().has("hybrid_layer_ids"))
    return corrupt(config.where("layers_block_type") + " is missing");
  KVANT_ASSIGN(std::vector<LayerKind> kinds,
               read_layer_kinds(config, "layers_block_type", num_layers,
                                [](int) { return LayerKind::kState; }));
  KVANT_TRY(mark_layers(config, "hybrid_layer_ids", LayerKind::kBoth, kinds));
  return build_layers(config, kinds, {.full = heads.full(), .state = state}, shape);
}

Status read_gated_delta(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const int key_heads, config.require("linear_num_key_heads", kHeadRange));
  KVANT_ASSIGN(const int value_heads, config.require("linear_num_value_heads", kHeadRange));
  KVANT_ASSIGN(const int key_dim, config.require("linear_key_head_dim", kDimRange));
  KVANT_ASSIGN(const int value_dim, config.require("linear_value_head_dim", kDimRange));
  KVANT_ASSIGN(const int d_conv, config.get_noted("linear_conv_kernel_dim", kSmallRange, 4));
  const int64_t channels = int64_t{2} * key_heads * key_dim + int64_t{value_heads} * value_dim;
  ConstantState state{.recurrent_elements = int64_t{value_heads} * key_dim * value_dim,
                      .conv_elements = channels * (d_conv - 1),
                      .heads = std::gcd(key_heads, value_heads)};
  KVANT_ASSIGN(state.recurrent_bytes, recurrent_bytes(config));
  KVANT_ASSIGN(const int interval, config.get("full_attention_interval", kLayerRange, 4));
  KVANT_ASSIGN(const std::vector<LayerKind> kinds,
               read_layer_kinds(config, "layer_types", num_layers, [interval](int layer) {
                 return (layer + 1) % interval == 0 ? LayerKind::kFull : LayerKind::kState;
               }));
  return build_layers(config, kinds, {.full = heads.full(), .state = state}, shape);
}

// Lightning attention: a matrix per head, no convolution. attn_type_list: 1 is full attention.
Status read_lightning(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const auto types,
               read_layer_integers(config.json(), config, "attn_type_list", num_layers));
  if (!types && !config.json().has("layer_types"))
    return corrupt(config.where("layer_types") + " is missing");
  KVANT_ASSIGN(const std::vector<LayerKind> kinds,
               read_layer_kinds(config, "layer_types", num_layers, [&](int layer) {
                 return (*types)[static_cast<size_t>(layer)] == 1 ? LayerKind::kFull
                                                                  : LayerKind::kState;
               }));
  const ConstantState state{.recurrent_elements = int64_t{heads.query} * heads.k_dim * heads.k_dim,
                            .heads = heads.query};
  return build_layers(config, kinds, {.full = heads.full(), .state = state}, shape);
}

Status read_lfm2(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const int hidden, config.hidden_size());
  KVANT_ASSIGN(const int d_conv, config.get_noted("conv_L_cache", kSmallRange, 3));
  if (!config.json().has("layer_types") && !config.json().has("full_attn_idxs"))
    return corrupt(config.where("layer_types") + " is missing");
  KVANT_ASSIGN(
      std::vector<LayerKind> kinds,
      read_layer_kinds(config, "layer_types", num_layers, [](int) { return LayerKind::kState; }));
  KVANT_TRY(mark_layers(config, "full_attn_idxs", LayerKind::kFull, kinds));
  const ConstantState state{.conv_elements = int64_t{hidden} * (d_conv - 1), .heads = hidden};
  return build_layers(config, kinds, {.full = heads.full(), .state = state}, shape);
}

// block_types, repeated over the layers.
Status read_recurrent_gemma(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const int window, config.get_noted("attention_window_size", kWindowRange, 2048));
  KVANT_ASSIGN(const int hidden, config.hidden_size());
  KVANT_ASSIGN(const int width, config.get("lru_width", kHiddenRange, hidden));
  KVANT_ASSIGN(const int d_conv, config.get_noted("conv1d_width", kSmallRange, 4));
  KVANT_ASSIGN(const auto blocks, config.json().strings("block_types"));
  if (!blocks || blocks->empty()) return corrupt(config.where("block_types") + " is missing");
  std::vector<LayerKind> kinds;
  for (size_t i = 0; i < static_cast<size_t>(num_layers); ++i) {
    const std::string& block = (*blocks)[i % blocks->size()];
    if (block != "recurrent" && block != "attention") {
      return unsupported(config.where("block_types") + ": " + in_quotes(block) +
                         ", wanted recurrent or attention");
    }
    kinds.push_back(block == "attention" ? LayerKind::kSliding : LayerKind::kState);
  }
  const LayerParts parts{.sliding = heads.sliding(window),
                         .state = {.recurrent_elements = width,
                                   .conv_elements = int64_t{width} * (d_conv - 1),
                                   .heads = heads.query}};
  return build_layers(config, kinds, parts, shape);
}

// A matrix per head, and the last token's inputs of time mixing and channel mixing.
Status read_rwkv5(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const int hidden, config.hidden_size());
  KVANT_ASSIGN(const int width, config.get("attention_hidden_size", kHiddenRange, hidden));
  KVANT_ASSIGN(const int dim, config.get_noted("head_size", kDimRange, 64));
  if (width % dim != 0) {
    return corrupt(config.where("head_size") + ": " + std::to_string(dim) +
                   ", wanted a divisor of the width " + std::to_string(width));
  }
  const ModelLayer layer{.streams = {},
                         .state = {.recurrent_elements = int64_t{width} * dim,
                                   .conv_elements = int64_t{2} * hidden,
                                   .heads = width / dim}};
  shape.layers.assign(static_cast<size_t>(num_layers), layer);
  return {};
}

// Mamba and sliding attention by turns up to the middle, then one layer with full attention; after
// it the layers with attention read that one's cache, and those between keep nothing.
Status read_phi4flash(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(const int period, config.get_noted("mb_per_layer", {1, 2}, 2));
  if (period != 2 || num_layers % 4 != 0) {
    return unsupported(config.where("num_hidden_layers") + ": " + std::to_string(num_layers) +
                       " with mb_per_layer " + std::to_string(period) +
                       ", wanted a multiple of 4 with mb_per_layer 2");
  }
  KVANT_ASSIGN(const int window, config.require("sliding_window", kWindowRange));
  KVANT_ASSIGN(const int64_t channels, read_channels(config, "mamba_expand"));
  KVANT_ASSIGN(const int d_state, config.get_noted("mamba_d_state", kDimRange, 16));
  KVANT_ASSIGN(const int d_conv, config.get_noted("mamba_d_conv", kSmallRange, 4));
  ConstantState state = channel_state(channels, d_state, d_conv);
  state.recurrent_bytes = 2;  // the model's own type
  const int middle = num_layers / 2, full = middle + 1;
  for (int i = 0; i < num_layers; ++i) {
    ModelLayer layer;
    if (i % 2 == 0 && i <= middle) layer.state = state;
    if (i % 2 == 1) layer.streams = {i < full ? heads.sliding(window) : heads.full()};
    if (i % 2 == 1 && i > full) layer.shares = full;
    shape.layers.push_back(std::move(layer));
  }
  return {};
}

}  // namespace kvant
