// Decoders that also attend to what an encoder has seen: cross attention's K and V are as long as
// the source.
#include "plan/attention_heads.h"
#include "plan/readers.h"

namespace kvant {
namespace {

CacheStream cross(const AttentionHeads& heads) {
  return {StreamKind::kCross, heads.kv, heads.k_dim, heads.v_dim, 0, 1};
}

void assign_decoder(int num_layers, const AttentionHeads& heads, ModelShape& shape) {
  const ModelLayer layer{.streams = {heads.full(), cross(heads)}, .state = {}};
  shape.layers.assign(static_cast<size_t>(num_layers), layer);
}

// Tokens of an image, where the configuration has a vision tower of square tiles; else 0.
Result<int64_t> image_tokens(const JsonObject& root) {
  KVANT_ASSIGN(const std::optional<JsonObject> vision, root.object("vision_config"));
  if (!vision) return 0;
  KVANT_ASSIGN(const auto size, find_integer(*vision, "image_size", kDimRange));
  KVANT_ASSIGN(const auto patch, find_integer(*vision, "patch_size", kDimRange));
  KVANT_ASSIGN(const auto tiles, find_integer(*vision, "max_num_tiles", kSmallRange));
  if (!size || !patch || !tiles) return 0;
  const int64_t side = *size / *patch;
  return *tiles * (side * side + 1);
}

}  // namespace

Status read_t5(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(std::optional<int64_t> num_layers, config.find("num_decoder_layers", kLayerRange));
  if (!num_layers) {
    KVANT_ASSIGN(num_layers, config.num_layers());
  }
  AttentionHeads heads;
  KVANT_ASSIGN(heads.query, read_query_heads(config, shape));
  KVANT_ASSIGN(heads.k_dim, config.require("d_kv", kDimRange));
  heads.kv = heads.query;
  heads.v_dim = heads.k_dim;
  assign_decoder(static_cast<int>(*num_layers), heads, shape);
  return {};
}

Status read_bart(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.require("decoder_layers", kLayerRange));
  AttentionHeads heads;
  KVANT_ASSIGN(heads.query, config.require("decoder_attention_heads", kHeadRange));
  shape.num_query_heads = heads.kv = heads.query;
  KVANT_ASSIGN(const int hidden, config.hidden_size());
  if (hidden % heads.query != 0) {
    return corrupt(config.where("decoder_attention_heads") + ": " + std::to_string(heads.query) +
                   ", wanted a divisor of the width " + std::to_string(hidden));
  }
  heads.k_dim = heads.v_dim = hidden / heads.query;
  if (heads.k_dim > kDimRange.high)
    return out_of_range(config.where("d_model"), hidden, {1, kDimRange.high * heads.query});
  assign_decoder(num_layers, heads, shape);
  KVANT_ASSIGN(shape.source_tokens, config.get("max_source_positions", kWindowRange, 0));
  if (shape.source_tokens > 0) {
    config.note("cross attention holds " + std::to_string(shape.source_tokens) +
                " positions of the encoder, whatever is said (max_source_positions)");
  }
  return {};
}

// Layers with cross attention have no attention of their own.
Status read_mllama(const ConfigReader& config, ModelShape& shape) {
  KVANT_ASSIGN(const int num_layers, config.num_layers());
  KVANT_ASSIGN(const AttentionHeads heads, read_heads(config, shape));
  KVANT_ASSIGN(auto layers, config.json().integers("cross_attention_layers"));
  if (!layers) {
    config.note(
        "cross_attention_layers isn't given: every fifth from layer 3 on, as the class has");
    layers.emplace();
    for (int layer = 3; layer < num_layers; layer += 5) layers->push_back(layer);
  }
  shape.layers.assign(static_cast<size_t>(num_layers), {.streams = {heads.full()}, .state = {}});
  for (const int64_t layer : *layers) {
    if (layer < 0 || layer >= num_layers)
      return out_of_range(config.where("cross_attention_layers"), layer, {0, num_layers - 1});
    shape.layers[static_cast<size_t>(layer)].streams = {cross(heads)};
  }
  KVANT_ASSIGN(shape.source_tokens, image_tokens(config.root()));
  if (shape.source_tokens > 0) {
    config.note("cross attention holds the " + std::to_string(shape.source_tokens) +
                " tokens of one image of the most tiles");
  }
  return {};
}

Status read_encoder(const ConfigReader& config, ModelShape&) {
  return unsupported(config.where("model_type") + ": " + std::string(config.model_type()) +
                     " is an encoder, which keeps no cache between tokens");
}

}  // namespace kvant
