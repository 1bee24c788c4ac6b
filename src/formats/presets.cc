// Presets, and the grammar of pairs: `preset`, `format`, or `K/V` where a side is a format or a
// preset's side.
#include <algorithm>
#include <string>

#include "formats/names.h"
#include "kvant/format.h"

namespace kvant {
namespace {

// A preset's formats. What K takes depends on whether the model normalises q and k per head: the
// norms leave a strong shape per channel that a rotation would smear.
struct Expansion {
  Preset preset;
  std::string_view key;
  std::string_view normed_key;  // where the model has q/k norms
  std::string_view value;
  std::string_view calibrated_key = {};  // where there is a calibration, whatever the model
  std::string_view wide_value = {};      // where heads have several times kValueGroup channels
};

constexpr int kValueGroup = 64;

// Why these (docs/numerics.md has the measurements): K per channel over the page, min/max, at every
// width: the tokens that matter most are the outliers that a fit would clip. V rotated per token
// with least-squares rows, in groups of 64 channels where a head has more: wide heads are then no
// worse than narrow ones; at 8 bits it gains from none of that. Without q/k norms K gains from the
// rotation, with them from a factor per token, at 2 bits from both.
constexpr std::string_view kAuto = "auto";
constexpr Expansion kExpansions[] = {
    {{kAuto, "what the checkpoint declares for its cache, else bf16"}, "bf16", "bf16", "bf16"},
    {{"int8", "8 bits: K per channel over the page, V per token"},
     "int8_channel_z_rot",
     "int8_channel_z",
     "int8_token"},
    {{"k8v4", "K as int8, V in 4 bits, rotated"},
     "int8_channel_z_rot",
     "int8_channel_z",
     "int4_token_z_lsq_rot",
     {},
     "int4_g64_z_lsq_rot"},
    {{"int4", "4 bits: K per channel over the page, V rotated"},
     "int4_channel_z_rot",
     "int4_channel_z_norm",
     "int4_token_z_lsq_rot",
     "tc4",
     "int4_g64_z_lsq_rot"},
    {{"int3", "3 bits: as int4"},
     "int3_channel_z_rot",
     "int3_channel_z_norm",
     "int3_token_z_lsq_rot",
     "tc3",
     "int3_g64_z_lsq_rot"},
    {{"int2", "2 bits: as int4, K always with a factor per token"},
     "int2_channel_z_norm_rot",
     "int2_channel_z_norm",
     "int2_token_z_lsq_rot",
     "tc2",
     "int2_g64_z_lsq_rot"},
    {{"fp8", "OCP FP8 E4M3 with the scale fixed at 1"}, "fp8_e4m3", "fp8_e4m3", "fp8_e4m3"},
    {{"kivi4", "KIVI at 4 bits: K per channel, V in groups of 32"},
     "int4_channel_z",
     "int4_channel_z",
     "int4_g32_z"},
    {{"kivi2", "KIVI at 2 bits: K per channel, V in groups of 32"},
     "int2_channel_z",
     "int2_channel_z",
     "int2_g32_z"},
};

const Expansion* find_preset(std::string_view name) {
  for (const Expansion& e : kExpansions) {
    if (e.preset.name == name) return &e;
  }
  return nullptr;
}

std::string side_of(const Expansion& e, Side side, const ModelTraits& traits) {
  if (e.preset.name == kAuto && traits.declared != nullptr) return traits.declared->name;
  if (side == Side::kValue) {
    const bool is_wide = traits.value_dim > kValueGroup && traits.value_dim % kValueGroup == 0;
    return std::string(is_wide && !e.wide_value.empty() ? e.wide_value : e.value);
  }
  const auto& calibrated = traits.calibrated;
  if (std::find(calibrated.begin(), calibrated.end(), e.calibrated_key) != calibrated.end())
    return std::string(e.calibrated_key);
  return std::string(traits.qk_norm ? e.normed_key : e.key);
}

Result<std::string> parse_side(std::string_view text, Side side, const ModelTraits& traits) {
  if (const Expansion* preset = find_preset(text)) {
    return side_of(*preset, side, traits);
  }
  if (!find_format(text).ok()) {
    std::vector<std::string_view> names;
    for (const Preset& p : all_presets()) names.push_back(p.name);
    for (const FormatInfo& info : all_formats()) names.push_back(info.name);
    return not_found("unknown format \"" + printable(text) +
                     "\"; the closest are: " + nearest_names(text, names, 3));
  }
  const FormatInfo* info = *find_format(text);
  if (!(side == Side::kKey ? info->for_keys : info->for_values)) {
    const bool is_key = side == Side::kKey;
    return unsupported(info->name + " can't store " + std::string(side_name(side)) +
                       "; wanted it beside another as K/V: " +
                       (is_key ? "int8_token/" + info->name : info->name + "/int4_token"));
  }
  return info->name;
}

}  // namespace

std::span<const Preset> all_presets() {
  static const std::vector<Preset> presets = [] {
    std::vector<Preset> list;
    for (const Expansion& e : kExpansions) list.push_back(e.preset);
    return list;
  }();
  return presets;
}

bool is_preset(std::string_view name) { return find_preset(name) != nullptr; }

Result<FormatPair> parse_format_pair(std::string_view text, const ModelTraits& traits) {
  const size_t slash = text.find('/');
  const std::string_view key = text.substr(0, slash);
  const std::string_view value = slash == std::string_view::npos ? key : text.substr(slash + 1);
  if (key.empty() || value.empty() || value.find('/') != std::string_view::npos) {
    return invalid_argument("format \"" + printable(text) +
                            "\" isn't a preset, a format, or two of them as K/V");
  }
  FormatPair pair;
  KVANT_ASSIGN(pair.key, parse_side(key, Side::kKey, traits));
  KVANT_ASSIGN(pair.value, parse_side(value, Side::kValue, traits));
  return pair;
}

}  // namespace kvant
