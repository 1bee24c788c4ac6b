#include "attention/cache_identity.h"

#include <bit>

#include "base/hash.h"

namespace kvant {
namespace {

// Of the bytes of exact and sealed pages and of slabs. Raise it with any change to them that no new
// format's name tells (docs/format-spec.md).
constexpr uint64_t kPageLayoutVersion = 1;

void add_int(HashInput& input, int64_t value) { input.add(static_cast<uint64_t>(value)); }

void add_floats(HashInput& input, std::span<const float> values) { input.add_all(values); }

void add_artifacts(HashInput& input, const HeadArtifacts* artifacts) {
  input.add(uint64_t{artifacts == nullptr ? 0 : artifacts->size() + 1});
  if (artifacts == nullptr) return;
  for (const std::vector<float>& head : *artifacts) add_floats(input, head);
}

void add_layer(HashInput& input, const CacheLayer& layer) {
  for (const int value :
       {layer.num_kv_heads, layer.key_dim, layer.value_dim, static_cast<int>(layer.value_source),
        layer.value_offset, layer.window, layer.shares}) {
    add_int(input, value);
  }
  input.add(layer.formats.key).add(layer.formats.value);
  add_floats(input, {{layer.key_scale, layer.value_scale, layer.rope.attention_factor}});
  add_floats(input, layer.key_head_scales);
  add_floats(input, layer.value_head_scales);
  add_floats(input, layer.rope.inv_freq);
  add_artifacts(input, layer.key_artifacts.get());
  add_artifacts(input, layer.value_artifacts.get());
}

}  // namespace

std::string cache_identity(const CacheOptions& options, Isa isa) {
  HashInput input("kvant cache");
  input.add(kPageLayoutVersion).add(options.model_identity).add(isa_name(isa));
  add_int(input, options.sinks);
  add_int(input, options.exact_window);
  input.add(options.rotation_seed).add(uint64_t{options.decode_pages});
  input.add(uint64_t{options.layers.size()});
  for (const CacheLayer& layer : options.layers) add_layer(input, layer);
  return hex(input.hash());
}

}  // namespace kvant
