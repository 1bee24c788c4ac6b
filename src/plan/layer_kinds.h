// LayerKinds: what each layer of a decoder keeps, as lists and patterns of a configuration say it.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "plan/config_reader.h"

namespace kvant {

enum class LayerKind : uint8_t {
  kFull,
  kSliding,
  kChunked,
  kState,  // constant state alone
  kBoth,   // full attention and constant state
  kNone,
};

// layer_types, or the list named `name`, or what `otherwise` says of each layer. corrupt for a list
// of another length, unsupported for a kind that isn't known.
Result<std::vector<LayerKind>> read_layer_kinds(
    const ConfigReader& config, std::string_view name, int num_layers,
    const std::function<LayerKind(int layer)>& otherwise);

// A list of integers per layer, cut to the layers; nothing if it is absent. corrupt as above.
Result<std::optional<std::vector<int64_t>>> read_layer_integers(const JsonObject& object,
                                                                const ConfigReader& config,
                                                                std::string_view name,
                                                                int num_layers);

// layer_types, else what the architecture's windows and sliding_window_pattern (a period, or
// "LLLG") say.
Result<std::vector<LayerKind>> read_attention_kinds(const ConfigReader& config, int num_layers);

// What a layer of each kind keeps; a part that is left out has no heads or elements.
struct LayerParts {
  CacheStream full = {}, sliding = {}, chunked = {};
  ConstantState state = {};
};

// One layer per kind. unsupported if a kind has no part.
Status build_layers(const ConfigReader& config, const std::vector<LayerKind>& kinds,
                    const LayerParts& parts, ModelShape& shape);

// num_kv_shared_layers: the last layers read the last cache of their own kind before them. corrupt
// if no layer before them has one.
Status share_last_layers(const ConfigReader& config, ModelShape& shape);

}  // namespace kvant
