#include "evaluate/stand_in.h"

#include <algorithm>
#include <memory>

#include "formats/family.h"

namespace kvant {
namespace {

// The largest of some millions of standard normal values.
constexpr float kLargest = 5.5f;

// Channels in quarters, of the mean bits that the name says: what SmolLM2's layers look like. An
// odd number of bits takes 32 channels, the others 16 (formats/transform.cc).
struct BitMix {
  std::string_view format;
  int quarters[4];  // falling
};
constexpr BitMix kMixes[] = {{"tc4", {6, 4, 4, 2}}, {"tc3", {4, 4, 2, 2}}, {"tc2", {3, 3, 1, 1}}};

std::shared_ptr<const HeadArtifacts> artifacts_of(const FormatInfo& format, int heads, int dim) {
  std::vector<float> tensor = stand_in_tensor(format, dim);
  if (tensor.empty()) return nullptr;
  return std::make_shared<HeadArtifacts>(static_cast<size_t>(heads), std::move(tensor));
}

}  // namespace

float stand_in_scale(const FormatInfo& format) {
  if (format.scale_source != ScaleSource::kGiven) return 0;
  constexpr float kMostE4m3 = 448, kMostInt8 = 127;
  return kLargest / (format.family == "floats" ? kMostE4m3 : kMostInt8);
}

std::vector<float> stand_in_tensor(const FormatInfo& format, int dim) {
  const auto& any = definition_of(format).any_artifact;
  if (!any) return {};
  std::vector<float> tensor = any(dim);
  for (const BitMix& mix : kMixes) {
    if (mix.format != format.name || dim % 64 != 0) continue;
    const auto bits = tensor.end() - dim;
    for (int i = 0; i < dim; ++i) bits[i] = static_cast<float>(mix.quarters[4 * i / dim]);
  }
  return tensor;
}

CacheLayer stand_in_layer(CacheLayer layer) {
  const Result<const FormatInfo*> key = find_format(layer.formats.key),
                                  value = find_format(layer.formats.value);
  if (!key.ok() || !value.ok()) return layer;  // the cache says what is wrong
  layer.key_scale = stand_in_scale(**key);
  layer.value_scale = stand_in_scale(**value);
  layer.key_artifacts = artifacts_of(**key, layer.num_kv_heads, layer.key_dim);
  layer.value_artifacts = artifacts_of(**value, layer.num_kv_heads, layer.value_dim);
  return layer;
}

}  // namespace kvant
