#include "attention/bound_layers.h"

#include <string>
#include <utility>

#include "attention/exact_page.h"

namespace kvant {
namespace {

// Bounds that keep every size within 64 bits; far beyond any model.
constexpr int kMaxHeads = 4096;
constexpr int kMaxDim = 65536;
constexpr int kMaxLayers = 65536;

// The float kernels take V rows in whole vectors, so that no page row and no accumulator needs
// padding.
constexpr int kValueDimMultiple = 16;

std::string layer_name(size_t layer) { return "layer " + std::to_string(layer); }

Status check_page_multiple(const char* name, int tokens) {
  if (tokens >= 0 && tokens % kPageTokens == 0) return Status();
  return invalid_argument(std::string(name) + " is " + std::to_string(tokens) +
                          "; wanted a multiple of " + std::to_string(kPageTokens) +
                          " tokens, or 0");
}

Status check_pages(const CacheOptions& options) {
  KVANT_TRY(check_page_multiple("the number of sink tokens", options.sinks));
  return check_page_multiple("the exact window", options.exact_window);
}

Status check_in_range(const std::string& what, int value, int low, int high) {
  if (value >= low && value <= high) return Status();
  return invalid_argument(what + " is " + std::to_string(value) + "; wanted " +
                          std::to_string(low) + " to " + std::to_string(high));
}

Status check_shape(const CacheLayer& layer) {
  KVANT_TRY(check_in_range("the number of KV heads", layer.num_kv_heads, 0, kMaxHeads));
  if (layer.num_kv_heads == 0) return Status();
  KVANT_TRY(check_in_range("the key width", layer.key_dim, 1, kMaxDim));
  KVANT_TRY(check_in_range("the value width", layer.value_dim, 1, kMaxDim));
  if (layer.window < 0) {
    return invalid_argument("the window is " + std::to_string(layer.window) +
                            " tokens; wanted at least 1, or 0 for none");
  }
  if (layer.value_source == ValueSource::kKeyRange &&
      (layer.value_offset < 0 || layer.value_offset + layer.value_dim > layer.key_dim)) {
    return invalid_argument("values are key channels " + std::to_string(layer.value_offset) +
                            " to " + std::to_string(layer.value_offset + layer.value_dim) + " of " +
                            std::to_string(layer.key_dim));
  }
  return Status();
}

// Pages of any width have a size; those that are computed on have whole vectors.
Status check_value_width(const CacheLayer& layer) {
  if (layer.value_source == ValueSource::kKeyRange || layer.value_dim % kValueDimMultiple == 0)
    return Status();
  return unsupported("values of " + std::to_string(layer.value_dim) +
                     " channels; the page kernels take multiples of " +
                     std::to_string(kValueDimMultiple));
}

// A layer that reads another's pages: they have to be there, of its shape, and reach back as far as
// its window.
Status check_shared(const std::vector<CacheLayer>& layers, size_t index) {
  const CacheLayer& layer = layers[index];
  const std::string target = "layer " + std::to_string(layer.shares);
  if (layer.shares >= static_cast<int>(index))
    return invalid_argument("it shares " + target + ", which isn't earlier");
  const CacheLayer& owner = layers[static_cast<size_t>(layer.shares)];
  if (owner.num_kv_heads == 0 || owner.shares >= 0) {
    return invalid_argument("it shares " + target + ", which has no cache of its own");
  }
  if (owner.num_kv_heads != layer.num_kv_heads || owner.key_dim != layer.key_dim ||
      owner.value_dim != layer.value_dim || owner.value_source != layer.value_source ||
      owner.value_offset != layer.value_offset) {
    return invalid_argument("it shares " + target + ", whose heads have another shape");
  }
  if (owner.window != 0 && (layer.window == 0 || layer.window > owner.window)) {
    return invalid_argument("it shares " + target + ", whose window of " +
                            std::to_string(owner.window) + " tokens is shorter than its own");
  }
  return Status();
}

// What one side needs to be bound.
struct SideRequest {
  const CacheOptions& options;
  size_t layer;
  Side side;
  const FormatInfo& info;
  int dim;
  std::span<const CodecArtifacts> artifacts;  // per head, or nothing
};

Result<FloatType> exact_type_of(const FormatInfo& info) {
  if (!info.exact || info.name == "bf16") return FloatType::kBf16;
  if (info.name == "f16") return FloatType::kF16;
  if (info.name == "f32") return FloatType::kF32;
  return unsupported("the cache has no exact pages of " + info.name);
}

Result<SideFormat> bind_side(const SideRequest& request, const FormatSource& formats, Isa isa) {
  const CacheLayer& layer = request.options.layers[request.layer];
  SideFormat side;
  KVANT_ASSIGN(side.exact_type, exact_type_of(request.info));
  if (request.info.exact) return side;
  for (int head = 0; head < layer.num_kv_heads; ++head) {
    const CodecBinding binding{.layer = static_cast<int>(request.layer),
                               .kv_head = head,
                               .side = request.side,
                               .dim = request.dim,
                               .seed = request.options.rotation_seed,
                               .rope = {.inv_freq = layer.rope.inv_freq.data(),
                                        .num_pairs = static_cast<int>(layer.rope.inv_freq.size()),
                                        .attention_factor = layer.rope.attention_factor},
                               .artifacts = request.artifacts.empty()
                                                ? nullptr
                                                : &request.artifacts[static_cast<size_t>(head)],
                               .isa = isa};
    KVANT_ASSIGN(std::unique_ptr<Codec> codec, formats.bind(request.info, binding));
    if (!side.codecs.empty() && codec->page_bytes() != side.codecs[0]->page_bytes()) {
      return internal_error(request.info.name +
                            " has pages of different sizes for the heads of one layer");
    }
    side.codecs.push_back(std::move(codec));
  }
  return side;
}

// What a layer gives the codecs of its heads, nothing where it gives nothing; the registry judges
// the scale, the formats the rest.
Result<std::vector<CodecArtifacts>> given_artifacts(int num_heads, float scale,
                                                    const std::vector<float>& head_scales,
                                                    const HeadArtifacts* heads) {
  std::vector<CodecArtifacts> out;
  if (scale == 0 && head_scales.empty() && heads == nullptr) return out;
  const auto n = static_cast<size_t>(num_heads);
  if (!head_scales.empty() && head_scales.size() != n) {
    return invalid_argument("given scales of " + std::to_string(head_scales.size()) +
                            " heads, wanted " + std::to_string(num_heads));
  }
  if (heads != nullptr && heads->size() != n) {
    return invalid_argument("calibrated numbers of " + std::to_string(heads->size()) +
                            " heads, wanted " + std::to_string(num_heads));
  }
  for (size_t h = 0; h < n; ++h) {
    out.push_back({.tensor_scale = scale, .tensor = {}});
    if (!head_scales.empty()) out.back().head_scale = head_scales[h];
    if (heads != nullptr) out.back().tensor = (*heads)[h];
  }
  return out;
}

// Codecs that look at the previous layer's pages need it to keep the same pages in the same state.
Status check_previous(const std::vector<CacheLayer>& layers, size_t index,
                      const std::string& format) {
  const CacheLayer& layer = layers[index];
  const CacheLayer* previous = index == 0 ? nullptr : &layers[index - 1];
  if (previous != nullptr && previous->shares < 0 && previous->num_kv_heads == layer.num_kv_heads &&
      previous->key_dim == layer.key_dim && previous->value_dim == layer.value_dim &&
      previous->window == layer.window && previous->value_source == layer.value_source) {
    return Status();
  }
  return unsupported(format + " needs a layer before it with a cache of the same shape and window");
}

Status bind_layer(const CacheOptions& options, size_t index, const FormatSource& formats, Isa isa,
                  BoundLayer& bound) {
  const CacheLayer& layer = options.layers[index];
  LayerFormat& format = bound.format;
  format.num_kv_heads = layer.num_kv_heads;
  format.key_dim = layer.key_dim;
  format.value_dim = layer.value_dim;
  format.value_from_key = layer.value_source == ValueSource::kKeyRange;
  format.value_offset = layer.value_offset;
  bound.owner = layer.shares >= 0 ? layer.shares : static_cast<int>(index);
  if (layer.shares >= 0) return check_shared(options.layers, index);

  KVANT_ASSIGN(const FormatInfo* key, formats.find(layer.formats.key));
  KVANT_ASSIGN(const FormatInfo* value, formats.find(layer.formats.value));
  if (format.value_from_key && (!key->exact || key != value)) {
    return unsupported("its values are a range of its keys, which are only kept exact for now; " +
                       layer.formats.name() + " was asked for");
  }
  KVANT_ASSIGN(const std::vector<CodecArtifacts> key_artifacts,
               given_artifacts(layer.num_kv_heads, layer.key_scale, layer.key_head_scales,
                               layer.key_artifacts.get()));
  KVANT_ASSIGN(const std::vector<CodecArtifacts> value_artifacts,
               given_artifacts(layer.num_kv_heads, layer.value_scale, layer.value_head_scales,
                               layer.value_artifacts.get()));
  KVANT_ASSIGN(
      format.key,
      bind_side({options, index, Side::kKey, *key, layer.key_dim, key_artifacts}, formats, isa));
  format.exact.key = exact_page_bytes(format.key.exact_type, layer.key_dim);
  if (!format.value_from_key) {
    KVANT_ASSIGN(format.value,
                 bind_side({options, index, Side::kValue, *value, layer.value_dim, value_artifacts},
                           formats, isa));
    format.exact.value = exact_page_bytes(format.value.exact_type, layer.value_dim);
  }
  bound.key_needs = key->needs;
  bound.value_needs = value->needs;
  if (bound.key_needs.pre_rope_rows)
    format.exact.pre_rope = exact_page_bytes(format.key.exact_type, layer.key_dim);
  if (bound.key_needs.previous_layer) KVANT_TRY(check_previous(options.layers, index, key->name));
  if (bound.value_needs.previous_layer)
    KVANT_TRY(check_previous(options.layers, index, value->name));
  if (!format.key.codecs.empty() || !format.value.codecs.empty()) {
    format.sealed.key =
        format.key.codecs.empty() ? format.exact.key : format.key.codecs[0]->page_bytes();
    format.sealed.value =
        format.value.codecs.empty() ? format.exact.value : format.value.codecs[0]->page_bytes();
  }
  const PartBytes& stored = format.sealed.total() > 0 ? format.sealed : format.exact;
  bound.key_bits = static_cast<double>(stored.key) * 8 / (double{kPageTokens} * layer.key_dim);
  bound.value_bits =
      static_cast<double>(stored.value) * 8 / (double{kPageTokens} * layer.value_dim);
  return Status();
}

bool same_group(const CacheLayer& a, const CacheLayer& b) {
  return a.num_kv_heads == b.num_kv_heads && a.key_dim == b.key_dim && a.value_dim == b.value_dim &&
         a.value_source == b.value_source && a.value_offset == b.value_offset &&
         a.window == b.window && a.formats == b.formats;
}

void assign_groups(const CacheOptions& options, BoundLayers& bound) {
  std::vector<size_t> first_of_group;
  for (size_t i = 0; i < bound.layers.size(); ++i) {
    BoundLayer& layer = bound.layers[i];
    if (layer.owner != static_cast<int>(i)) continue;
    size_t g = 0;
    while (g < first_of_group.size() &&
           !same_group(options.layers[first_of_group[g]], options.layers[i]))
      ++g;
    if (g == first_of_group.size()) {
      first_of_group.push_back(i);
      bound.groups.push_back({.rule = {.seals = layer.format.sealed.total() > 0,
                                       .sink_pages = options.sinks / kPageTokens,
                                       .exact_pages = options.exact_window / kPageTokens,
                                       .window = options.layers[i].window},
                              .num_layers = 0,
                              .num_heads = layer.format.num_kv_heads,
                              .token_elements = 0,
                              .exact = layer.format.exact,
                              .sealed = layer.format.sealed});
    }
    layer.group = static_cast<int>(g);
    layer.index_in_group = bound.groups[g].num_layers++;
    const int width =
        layer.format.key_dim + (layer.format.value_from_key ? 0 : layer.format.value_dim);
    bound.groups[g].token_elements +=
        static_cast<size_t>(layer.format.num_kv_heads) * static_cast<size_t>(width);
  }
}

}  // namespace

const FormatSource& registered_formats() {
  static const FormatSource registered = {.find = find_format, .bind = bind_codec};
  return registered;
}

Result<GroupLayout> layout_group(const CacheLayer& layer, int num_layers, int sinks,
                                 int exact_window, const FormatSource& formats) {
  KVANT_TRY(check_in_range("the number of layers", num_layers, 1, kMaxLayers));
  KVANT_TRY(check_in_range("the number of KV heads", layer.num_kv_heads, 1, kMaxHeads));
  CacheOptions one{.layers = {layer}, .sinks = sinks, .exact_window = exact_window};
  one.layers[0].num_kv_heads = 1;
  KVANT_TRY(check_pages(one));
  KVANT_TRY(check_shape(one.layers[0]));
  BoundLayers bound;
  bound.layers.resize(1);
  KVANT_TRY(bind_layer(one, 0, formats, active_isa(), bound.layers[0]));
  assign_groups(one, bound);
  GroupLayout group = bound.groups[0];
  group.num_heads = layer.num_kv_heads;
  group.num_layers = num_layers;
  group.token_elements *= static_cast<size_t>(layer.num_kv_heads) * static_cast<size_t>(num_layers);
  return group;
}

Result<BoundLayers> bind_layers(const CacheOptions& options, const FormatSource& formats, Isa isa) {
  KVANT_TRY(check_pages(options));
  KVANT_TRY(check_in_range("the number of layers", static_cast<int>(options.layers.size()), 1,
                           kMaxLayers));
  BoundLayers bound;
  bound.layers.resize(options.layers.size());
  for (size_t i = 0; i < options.layers.size(); ++i) {
    KVANT_TRY(check_shape(options.layers[i]).with_context(layer_name(i)));
    if (options.layers[i].num_kv_heads == 0) continue;
    KVANT_TRY(check_value_width(options.layers[i]).with_context(layer_name(i)));
    KVANT_TRY(bind_layer(options, i, formats, isa, bound.layers[i]).with_context(layer_name(i)));
  }
  assign_groups(options, bound);
  return bound;
}

}  // namespace kvant
