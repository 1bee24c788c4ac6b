#include "calibrate/sensitivities.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "calibrate/layer_tensor.h"

namespace kvant {
namespace {

constexpr std::string_view kSide = "sensitivity";
constexpr std::string_view kLayer = ".layer", kHeads = ".heads";
constexpr size_t kLayerNumbers = 4, kHeadNumbers = 2;

// The text that reads back as the same number.
std::string exact_text(double x) {
  std::array<char, 32> out;
  const auto end = std::to_chars(out.data(), out.data() + out.size(), x).ptr;
  return {out.data(), end};
}

// One pass over the metadata, for writing and for reading: `visit(key, field)`.
template <typename Sensitivities, typename Visit>
void visit_facts(Sensitivities& s, const Visit& visit) {
  visit("kvant.sensitivity.data", s.data);
  visit("kvant.sensitivity.command", s.command);
  visit("kvant.sensitivity.tokens", s.tokens);
  visit("kvant.sensitivity.kv", s.proposal.kv);
  visit("kvant.sensitivity.kv_layers", s.proposal.kv_layers);
  visit("kvant.sensitivity.budget", s.proposal.budget);
  visit("kvant.sensitivity.sealed_bits", s.proposal.sealed_bits);
  visit("kvant.sensitivity.kld", s.proposal.kld);
  visit("kvant.sensitivity.kld_error", s.proposal.kld_error);
}

std::string text_of(const std::string& x) { return x; }
std::string text_of(int64_t x) { return std::to_string(x); }
std::string text_of(double x) { return exact_text(x); }

void take(const std::string& text, std::string& to) { to = text; }
template <typename T>
void take(const std::string& text, T& to) {
  std::from_chars(text.data(), text.data() + text.size(), to);
}

Status bad_tensor(const Safetensors& file, const SafetensorsTensor& tensor, const char* wanted) {
  return corrupt(file.path_of(tensor).string() + ": tensor " + in_quotes(tensor.name) +
                 " isn't what kvant sensitivity writes there: wanted " + wanted);
}

// The numbers of a tensor; nothing unless it is F64 [...][width], all finite.
std::optional<std::vector<double>> numbers_of(const SafetensorsTensor& tensor, size_t width) {
  if (tensor.dtype != "F64" || tensor.shape.empty() || tensor.shape.back() != width)
    return std::nullopt;
  std::vector<double> out(tensor.data.size() / sizeof(double));
  std::memcpy(out.data(), tensor.data.data(), out.size() * sizeof(double));
  const bool usable =
      std::all_of(out.begin(), out.end(), [](double x) { return std::isfinite(x); });
  return usable ? std::optional(std::move(out)) : std::nullopt;
}

FormatSensitivities& format_of(std::string_view name, Sensitivities& to) {
  const auto found = std::find_if(to.formats.begin(), to.formats.end(),
                                  [&](const auto& of) { return of.format == name; });
  if (found != to.formats.end()) return *found;
  return to.formats.emplace_back(FormatSensitivities{.format = std::string(name), .layers = {}});
}

LayerSensitivity& layer_of(size_t layer, FormatSensitivities& to) {
  const auto index = static_cast<int>(layer);
  const auto found = std::find_if(to.layers.begin(), to.layers.end(),
                                  [&](const auto& of) { return of.layer == index; });
  if (found != to.layers.end()) return *found;
  LayerSensitivity& added = to.layers.emplace_back();
  added.layer = index;
  return added;
}

Status read_tensor(const Safetensors& file, const SafetensorsTensor& tensor,
                   const LayerTensorName& name, Sensitivities& to) {
  const std::string_view what = name.what;
  if (what.ends_with(kLayer)) {
    const auto numbers = numbers_of(tensor, kLayerNumbers);
    if (!numbers || numbers->size() != kLayerNumbers)
      return bad_tensor(file, tensor, "F64 [4] of finite numbers");
    LayerSensitivity& of =
        layer_of(name.layer, format_of(what.substr(0, what.size() - kLayer.size()), to));
    of.scores = (*numbers)[0];
    of.outputs = (*numbers)[1];
    of.kld = (*numbers)[2];
    of.kld_error = (*numbers)[3];
    return {};
  }
  if (!what.ends_with(kHeads)) return {};
  const auto numbers = numbers_of(tensor, kHeadNumbers);
  if (!numbers) return bad_tensor(file, tensor, "F64 [heads][2] of finite numbers");
  LayerSensitivity& of =
      layer_of(name.layer, format_of(what.substr(0, what.size() - kHeads.size()), to));
  for (size_t i = 0; i < numbers->size(); i += kHeadNumbers)
    of.heads.push_back({(*numbers)[i], (*numbers)[i + 1]});
  return {};
}

}  // namespace

void write_sensitivities(const Sensitivities& sensitivities, SafetensorsWriter& writer,
                         std::vector<std::pair<std::string, std::string>>& metadata) {
  if (sensitivities.formats.empty()) return;
  visit_facts(sensitivities, [&](const char* key, const auto& field) {
    metadata.emplace_back(key, text_of(field));
  });
  for (const FormatSensitivities& format : sensitivities.formats) {
    for (const LayerSensitivity& layer : format.layers) {
      const std::string name =
          "layers." + std::to_string(layer.layer) + "." + std::string(kSide) + "." + format.format;
      const std::vector<double> numbers = {layer.scores, layer.outputs, layer.kld, layer.kld_error};
      writer.add(name + std::string(kLayer), "F64", {kLayerNumbers}, numbers);
      if (layer.heads.empty()) continue;
      std::vector<double> heads;
      for (const HeadSensitivity& head : layer.heads)
        heads.insert(heads.end(), {head.scores, head.outputs});
      writer.add(name + std::string(kHeads), "F64", {layer.heads.size(), kHeadNumbers}, heads);
    }
  }
}

Result<Sensitivities> read_sensitivities(const Safetensors& file) {
  Sensitivities out;
  visit_facts(out, [&](const char* key, auto& field) {
    if (const std::string* text = file.metadata(key)) take(*text, field);
  });
  for (const SafetensorsTensor& tensor : file.tensors()) {
    const std::optional<LayerTensorName> name = split_layer_tensor(tensor.name);
    if (name && name->side == kSide) KVANT_TRY(read_tensor(file, tensor, *name, out));
  }
  return out;
}

}  // namespace kvant
