#include "cli/calibration_use.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "calibrate/overlap.h"
#include "cli/terminal.h"
#include "formats/codec.h"
#include "formats/names.h"

namespace kvant::cli {
namespace {

// The given scales of one side of a layer, the calibration's before the checkpoint's; none for a
// format that takes none.
std::vector<float> given_scales(size_t layer, Side side, const std::string& format,
                                const ModelInfo& info, const Sidecar* calibration) {
  if (calibration != nullptr) {
    const auto* found = calibration->scales().find(static_cast<int>(layer), side, format);
    if (found != nullptr) return *found;
  }
  const UsableScales& own = info.cache_scales;
  if (own.format == nullptr || own.format->name != format) return {};
  return side == Side::kKey ? own.layers[layer].key : own.layers[layer].value;
}

bool is_assumed(const UsableScales& checkpoint, size_t layer, Side side) {
  if (layer >= checkpoint.layers.size()) return false;
  const LayerCheckpointScales& of = checkpoint.layers[layer];
  return side == Side::kKey ? of.key_is_assumed : of.value_is_assumed;
}

}  // namespace

Result<std::optional<Sidecar>> open_calibration(const Invocation& in) {
  std::filesystem::path path = in.settings.calibration;
  if (path == "none") return std::optional<Sidecar>();
  if (path.empty()) {
    path = std::filesystem::path(in.model) / kSidecarName;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return std::optional<Sidecar>();
  }
  KVANT_ASSIGN(Sidecar sidecar, Sidecar::open(path));
  KVANT_TRY(sidecar.check_model(in.model));
  KVANT_TRY(sidecar.scales().check(sidecar.path().string()));
  return std::optional<Sidecar>(std::move(sidecar));
}

std::vector<std::string> calibrated_formats(size_t layer, const ModelInfo& info,
                                            const Sidecar* calibration) {
  const LayerShape& shape = info.layer_shapes[layer];
  const auto l = static_cast<int>(layer);
  std::vector<std::string> out;
  if (calibration != nullptr) {
    out = calibration->formats(l, shape.num_kv_heads, shape.key_dim);
    for (std::string& name : calibration->scales().formats(l, shape.num_kv_heads))
      out.push_back(std::move(name));
  }
  const UsableScales& own = info.cache_scales;
  if (own.format != nullptr && !own.layers[layer].key.empty() && !own.layers[layer].value.empty())
    out.push_back(own.format->name);
  return out;
}

void give_scales(size_t l, const ModelInfo& info, const Sidecar* calibration, CacheLayer& layer) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const bool is_key = side == Side::kKey;
    const std::string& format = is_key ? layer.formats.key : layer.formats.value;
    const Result<const FormatInfo*> known = find_format(format);
    std::vector<float> scales = given_scales(l, side, format, info, calibration);
    if (!known.ok() || scales.empty()) continue;
    if ((*known)->scale_source == ScaleSource::kGiven) {
      (is_key ? layer.key_scale : layer.value_scale) = scales.front();
    } else {
      (is_key ? layer.key_head_scales : layer.value_head_scales) = std::move(scales);
    }
  }
}

std::vector<std::string> scale_sources(const CacheOptions& options, const UsableScales& checkpoint,
                                       const Sidecar* calibration) {
  std::map<std::string, std::vector<int>> layers;  // what is to be said → of which
  for (size_t l = 0; l < options.layers.size(); ++l) {
    const CacheLayer& layer = options.layers[l];
    const auto say = [&](const std::string& format, bool given, Side side) {
      const Result<const FormatInfo*> info = find_format(format);
      if (!info.ok() || layer.num_kv_heads == 0) return;
      std::string from;
      if ((*info)->scale_source == ScaleSource::kFixed) {
        from = "a scale fixed at 1, no calibration";
      } else if (given) {
        const bool learned =
            calibration != nullptr &&
            calibration->scales().find(static_cast<int>(l), side, format) != nullptr;
        from = learned ? "calibrated scales, source " + calibration->scales().source
               : is_assumed(checkpoint, l, side)
                   ? fmt::format("the scale 1 for {}, of which the checkpoint has none",
                                 side_name(side))
                   : std::string("the checkpoint's scales");
      } else if (takes_given_scale(**info)) {
        from = "scales found page by page";
      } else {
        return;
      }
      std::vector<int>& of = layers[fmt::format("{} has {}", format, from)];
      if (of.empty() || of.back() != static_cast<int>(l)) of.push_back(static_cast<int>(l));
    };
    say(layer.formats.key, layer.key_scale != 0 || !layer.key_head_scales.empty(), Side::kKey);
    say(layer.formats.value, layer.value_scale != 0 || !layer.value_head_scales.empty(),
        Side::kValue);
  }
  std::vector<std::string> out;
  for (const auto& [what, which] : layers)
    out.push_back(fmt::format("layers {}: {}", index_ranges(which), what));
  return out;
}

void note_overlap(const std::optional<Sidecar>& calibration, std::string_view text) {
  if (!calibration) return;
  const Overlap overlap = overlap_of(text, calibration->facts().lines);
  if (overlap.shared == 0) return;
  note(
      "warning  {} of the {} read of the text were calibrated on: what is measured on them "
      "is no test of the calibration\n",
      overlap.shared, counted(overlap.lines, "line"));
}

}  // namespace kvant::cli
