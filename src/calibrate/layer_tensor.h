// Names of a sidecar's tensors: "layers.<layer>.<side>.<what>".
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace kvant {

struct LayerTensorName {
  size_t layer = 0;
  std::string_view side, what;
};

// "layers.7.k.tc4.bits" → 7, "k" and "tc4.bits"; nothing for another name.
inline std::optional<LayerTensorName> split_layer_tensor(std::string_view name) {
  constexpr std::string_view kBegin = "layers.";
  constexpr size_t kMaxLayers = 65536;
  if (!name.starts_with(kBegin)) return std::nullopt;
  LayerTensorName out;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kBegin.size(), end, out.layer);
  if (error != std::errc() || out.layer >= kMaxLayers || at == end || *at != '.')
    return std::nullopt;
  const std::string_view rest(at + 1, static_cast<size_t>(end - at - 1));
  const size_t dot = rest.find('.');
  if (dot == rest.npos) return std::nullopt;
  out.side = rest.substr(0, dot);
  out.what = rest.substr(dot + 1);
  return out;
}

}  // namespace kvant
