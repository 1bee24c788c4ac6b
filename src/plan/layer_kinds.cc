#include "plan/layer_kinds.h"

#include <algorithm>
#include <array>

#include "files/mapped_file.h"

namespace kvant {
namespace {

struct KindRow {
  std::string_view name;
  LayerKind kind;
};
constexpr std::array<KindRow, 14> kKinds = {{{"full_attention", LayerKind::kFull},
                                             {"attention", LayerKind::kFull},
                                             {"indexed_attention", LayerKind::kFull},
                                             {"minimax_m3_sparse", LayerKind::kFull},
                                             {"sliding_attention", LayerKind::kSliding},
                                             {"chunked_attention", LayerKind::kChunked},
                                             {"linear_attention", LayerKind::kState},
                                             {"mamba", LayerKind::kState},
                                             {"mamba2", LayerKind::kState},
                                             {"conv", LayerKind::kState},
                                             {"recurrent", LayerKind::kState},
                                             {"hybrid", LayerKind::kBoth},
                                             {"mlp", LayerKind::kNone},
                                             {"moe", LayerKind::kNone}}};

Status check_length(const ConfigReader& config, const std::string& where, size_t length,
                    int num_layers) {
  KVANT_ASSIGN(const int extra, config.extra_layers());
  const auto wanted = static_cast<size_t>(num_layers);
  if (length == wanted || (length > wanted && length <= wanted + static_cast<size_t>(extra)))
    return {};
  return corrupt(where + ": " + std::to_string(length) + " entries, wanted " +
                 std::to_string(num_layers));
}

// "LLLG": L slides, G sees all tokens; repeated over the layers.
Result<std::vector<LayerKind>> kinds_of_letters(const ConfigReader& config,
                                                const std::string& letters, int num_layers) {
  const std::string where = config.where("sliding_window_pattern");
  if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
    return unsupported(where + ": " + in_quotes(letters) + ", wanted letters L and G");
  std::vector<LayerKind> kinds;
  for (size_t i = 0; i < static_cast<size_t>(num_layers); ++i) {
    const bool slides = letters[i % letters.size()] == 'L';
    kinds.push_back(slides ? LayerKind::kSliding : LayerKind::kFull);
  }
  return kinds;
}

}  // namespace

Result<std::vector<LayerKind>> read_layer_kinds(
    const ConfigReader& config, std::string_view name, int num_layers,
    const std::function<LayerKind(int layer)>& otherwise) {
  KVANT_ASSIGN(const std::optional<std::vector<std::string>> names, config.json().strings(name));
  std::vector<LayerKind> kinds;
  if (!names) {
    for (int i = 0; i < num_layers; ++i) kinds.push_back(otherwise(i));
    return kinds;
  }
  KVANT_TRY(check_length(config, config.where(name), names->size(), num_layers));
  for (size_t i = 0; i < static_cast<size_t>(num_layers); ++i) {
    const auto row = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const KindRow& r) { return r.name == (*names)[i]; });
    if (row == kKinds.end()) {
      return unsupported(config.where(name) + ": " + in_quotes((*names)[i]) +
                         ", wanted full_attention, sliding_attention, chunked_attention, "
                         "linear_attention, mamba, conv or hybrid");
    }
    kinds.push_back(row->kind);
  }
  return kinds;
}

Result<std::optional<std::vector<int64_t>>> read_layer_integers(const JsonObject& object,
                                                                const ConfigReader& config,
                                                                std::string_view name,
                                                                int num_layers) {
  KVANT_ASSIGN(std::optional<std::vector<int64_t>> values, object.integers(name));
  if (values) {
    KVANT_TRY(check_length(config, object.where(name), values->size(), num_layers));
    values->resize(static_cast<size_t>(num_layers));
  }
  return values;
}

Result<std::vector<LayerKind>> read_attention_kinds(const ConfigReader& config, int num_layers) {
  constexpr std::string_view kPattern = "sliding_window_pattern";
  const Windows windows = config.defaults().windows;
  if (windows == Windows::kNone)
    return std::vector<LayerKind>(static_cast<size_t>(num_layers), LayerKind::kFull);
  int period = 0, first = 0;
  if (windows == Windows::kFromLayer) {
    KVANT_ASSIGN(first, config.get("max_window_layers", {0, kLayerRange.high},
                                   static_cast<int>(config.defaults().period)));
  } else if (windows == Windows::kPeriod) {
    if (config.json().is_string(kPattern) && !config.json().has("layer_types")) {
      KVANT_ASSIGN(const std::optional<std::string> letters, config.json().string(kPattern));
      return kinds_of_letters(config, *letters, num_layers);
    }
    period = config.defaults().period;
    if (!config.json().is_string(kPattern)) {
      KVANT_ASSIGN(period, config.get(kPattern, kLayerRange, period));
    }
  }
  return read_layer_kinds(config, "layer_types", num_layers, [&](int layer) {
    const bool slides = layer >= first && (period == 0 || (layer + 1) % period != 0);
    return slides ? LayerKind::kSliding : LayerKind::kFull;
  });
}

Status build_layers(const ConfigReader& config, const std::vector<LayerKind>& kinds,
                    const LayerParts& parts, ModelShape& shape) {
  for (const LayerKind kind : kinds) {
    ModelLayer layer;
    if (kind == LayerKind::kFull || kind == LayerKind::kBoth) layer.streams = {parts.full};
    if (kind == LayerKind::kSliding) layer.streams = {parts.sliding};
    if (kind == LayerKind::kChunked) layer.streams = {parts.chunked};
    if (kind == LayerKind::kState || kind == LayerKind::kBoth) layer.state = parts.state;
    const bool keeps_state = kind == LayerKind::kState || kind == LayerKind::kBoth;
    if ((!layer.streams.empty() && layer.streams[0].heads == 0) ||
        (keeps_state && layer.state.is_empty())) {
      return unsupported(config.where("layer_types") + ": layer " +
                         std::to_string(shape.layers.size()) +
                         " is of a kind that isn't known of " + std::string(config.model_type()));
    }
    shape.layers.push_back(std::move(layer));
  }
  return {};
}

Status share_last_layers(const ConfigReader& config, ModelShape& shape) {
  constexpr std::string_view kName = "num_kv_shared_layers";
  KVANT_ASSIGN(std::optional<int64_t> shared, config.find(kName, {0, kLayerRange.high}));
  if (!shared) shared = config.class_default(kName, config.defaults().shared_layers);
  if (shared.value_or(0) == 0) return {};
  const int num_layers = static_cast<int>(shape.layers.size());
  if (*shared >= num_layers) {
    return corrupt(config.where(kName) + ": " + std::to_string(*shared) +
                   ", wanted less than the " + std::to_string(num_layers) + " layers");
  }
  const int first = num_layers - static_cast<int>(*shared);
  std::vector<int> owners;  // the last layer of each kind that has a cache of its own
  const auto find_owner = [&](const ModelLayer& layer) {
    return std::find_if(owners.begin(), owners.end(), [&](int owner) {
      return shape.layers[static_cast<size_t>(owner)].streams == layer.streams;
    });
  };
  for (int i = first - 1; i >= 0; --i) {
    if (find_owner(shape.layers[static_cast<size_t>(i)]) == owners.end()) owners.push_back(i);
  }
  for (int i = first; i < num_layers; ++i) {
    ModelLayer& layer = shape.layers[static_cast<size_t>(i)];
    if (layer.streams.empty()) continue;
    const auto owner = find_owner(layer);
    if (owner == owners.end()) {
      return corrupt(config.where(kName) + ": " + std::to_string(*shared) +
                     ", but no layer that keeps its own cache is of the kind of layer " +
                     std::to_string(i));
    }
    layer.shares = *owner;
  }
  return {};
}

}  // namespace kvant
