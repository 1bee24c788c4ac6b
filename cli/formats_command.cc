// kvant formats: the registry, or what of it has a word in its name, and what the presets stand
// for.

#include <fmt/format.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "formats/names.h"
#include "kvant/format.h"

namespace kvant::cli {
namespace {

constexpr int kShownDim = 128;  // the head size at which bits and kernels are shown, and a wide one

std::string granularity_text(const FormatInfo& f) {
  if (f.granularity == Granularity::kGroup) return fmt::format("{} channels", f.group);
  if (f.granularity == Granularity::kChannel) return "channel x page";
  if (f.granularity == Granularity::kHead) return "head x page";
  return std::string(granularity_name(f.granularity));
}

double bits_of(const FormatInfo& f, Side side) {
  const Result<double> bits = sealed_bits(f, side, kShownDim);
  return bits.ok() ? *bits : 0;
}

std::string_view sides_of(const FormatInfo& f) {
  return f.for_keys ? (f.for_values ? "K V" : "K") : "V";
}

Json format_json(const FormatInfo& f) {
  return {{"name", f.name},
          {"summary", f.summary},
          {"nominal_bits", f.nominal_bits},
          {"sealed_bits_k", f.for_keys ? Json(bits_of(f, Side::kKey)) : Json()},
          {"sealed_bits_v", f.for_values ? Json(bits_of(f, Side::kValue)) : Json()},
          {"granularity", granularity_name(f.granularity)},
          {"group", f.group},
          {"zero_point", f.zero_point},
          {"token_norm", f.token_norm},
          {"rotated", f.rotated},
          {"exact", f.exact},
          {"scale_source", scale_source_name(f.scale_source)},
          {"before_rope", f.before_rope},
          {"keys", f.for_keys},
          {"values", f.for_values},
          {"kernel_k", f.for_keys ? Json(kernel_of(f.name, Side::kKey, kShownDim)) : Json()},
          {"kernel_v", f.for_values ? Json(kernel_of(f.name, Side::kValue, kShownDim)) : Json()}};
}

// The preset's pair on a model without and with q/k norms.
Result<std::pair<FormatPair, FormatPair>> expansions(const Preset& preset) {
  KVANT_ASSIGN(FormatPair plain, parse_format_pair(preset.name, ModelTraits{.qk_norm = false}));
  KVANT_ASSIGN(FormatPair normed, parse_format_pair(preset.name, ModelTraits{.qk_norm = true}));
  return std::pair{std::move(plain), std::move(normed)};
}

Result<FormatPair> wide_expansion(const Preset& preset) {
  return parse_format_pair(preset.name, {.value_dim = kShownDim});
}

std::string sealed_text(const FormatInfo& f) {
  const double key = bits_of(f, Side::kKey), value = bits_of(f, Side::kValue);
  if (!f.for_keys || !f.for_values || key == value)
    return fmt::format("{:.2f}", f.for_keys ? key : value);
  return fmt::format("{:.2f}/{:.2f}", key, value);
}

// What the formats of one heading share: "int8", "fp8"; the exact ones stand together.
std::string kind_of(const FormatInfo& f) {
  return f.exact ? "exact" : f.name.substr(0, f.name.find('_'));
}

bool has_rotated(const FormatInfo& f) { return find_format(f.name + "_rot").ok(); }

// Whether a row that also stands for its rotated twin is asked for.
bool is_asked(const FormatInfo& f, const std::string& word) {
  const std::string name = has_rotated(f) ? f.name + "_rot" : f.name;
  return name.find(word) != name.npos;
}

// Which code reads the format, without the format's name.
std::string kernel_text(const FormatInfo& f) {
  const std::string kernel = kernel_of(f.name, f.for_keys ? Side::kKey : Side::kValue, kShownDim);
  const size_t begin = kernel.find('/') + 1;
  return kernel.substr(begin, kernel.find('+') - begin);  // without the rotation before it
}

std::string render_formats(const std::string& word, bool colored) {
  Table table({{"format", true},
               {"bits"},
               {"sealed"},
               {"scale per", true},
               {"zero", true},
               {"scale from", true},
               {"K stored", true},
               {"for", true},
               {"kernel", true}});
  std::string kind;
  for (const FormatInfo& f : all_formats()) {
    const bool is_twin = f.rotated && f.name.ends_with("_rot");
    if (is_twin || !is_asked(f, word)) continue;
    if (kind_of(f) != kind) table.add_heading(kind = kind_of(f));
    table.add_row({{f.name + (has_rotated(f) ? "[_rot]" : "")},
                   {fmt::format("{:g}", f.nominal_bits)},
                   {sealed_text(f)},
                   {granularity_text(f)},
                   {f.zero_point ? "yes" : "no"},
                   {f.scale_source == ScaleSource::kGiven ? "given *"
                    : f.needs.artifacts                   ? "calibrated"
                                        : std::string(scale_source_name(f.scale_source))},
                   {f.for_keys ? (f.before_rope ? "before RoPE" : "after RoPE") : "-"},
                   {std::string(sides_of(f))},
                   {kernel_text(f)}});
  }
  return table.render(colored);
}

constexpr std::string_view kFormatNotes =
    "\n[_rot]: the format exists rotated as well, under its name with _rot; presets rotate K there "
    "on models without q/k norms.\n"
    "[_rot|_norm]: rotated on models without q/k norms, with a factor per token on models with "
    "them.\n"
    "[token|g64]: a scale for a token's whole head or, of heads of several times 64 channels, for "
    "every 64.\n"
    "sealed: bits per element of a sealed page, scales, zero points and padding included, for "
    "heads "
    "of 128 channels.\n"
    "scale per: so many channels are those of one token; a page is 64 tokens.\n"
    "scale from: dynamic is found page by page, fixed is 1. * given: one for all values, by kvant "
    "calibrate, a\n"
    "checkpoint, or the library's caller (CacheLayer::key_scale, value_scale). _head formats "
    "without "
    "a zero point\n"
    "take given scales too, one per KV head (key_head_scales, value_head_scales).\n"
    "Sinks, the exact window and the open page stay exact (bf16) beside sealed pages.\n";

// "int4_channel_z[_rot|_norm]": without and with q/k norms.
std::string key_text(const std::pair<FormatPair, FormatPair>& pairs) {
  const std::string &plain = pairs.first.key, &normed = pairs.second.key;
  if (plain == normed) return plain;
  if (plain.starts_with(normed)) return normed + "[" + plain.substr(normed.size()) + "]";
  const auto differs =
      std::mismatch(plain.begin(), plain.end(), normed.begin(), normed.end()).first;
  const size_t option = plain.rfind('_', static_cast<size_t>(differs - plain.begin()));
  return plain.substr(0, option) + "[" + plain.substr(option) + "|" + normed.substr(option) + "]";
}

// "int4_[token|g64]_z": of narrow and of wide heads.
std::string value_text(const std::string& narrow, const std::string& wide) {
  if (narrow == wide) return narrow;
  const auto differs = std::mismatch(narrow.begin(), narrow.end(), wide.begin(), wide.end()).first;
  const size_t option = narrow.rfind('_', static_cast<size_t>(differs - narrow.begin())) + 1;
  const size_t rest = narrow.find('_', option), wide_rest = wide.find('_', option);
  return narrow.substr(0, option) + "[" + narrow.substr(option, rest - option) + "|" +
         wide.substr(option, wide_rest - option) + "]" + narrow.substr(rest);
}

Result<std::string> render_presets(const std::string& word, bool colored) {
  Table table({{"preset", true}, {"K", true}, {"V", true}, {"what it is", true}});
  bool any = false;
  for (const Preset& preset : all_presets()) {
    if (preset.name.find(word) == preset.name.npos) continue;
    any = true;
    KVANT_ASSIGN(const auto pairs, expansions(preset));
    KVANT_ASSIGN(const FormatPair wide, wide_expansion(preset));
    table.add_row({{std::string(preset.name), Color::kBold},
                   {key_text(pairs)},
                   {value_text(pairs.first.value, wide.value)},
                   {std::string(preset.summary)}});
  }
  return any ? table.render(colored) + "\n" : "";
}

Status check_word(const std::string& word) {
  std::vector<std::string_view> names;
  for (const Preset& preset : all_presets()) names.push_back(preset.name);
  for (const FormatInfo& f : all_formats()) names.push_back(f.name);
  for (std::string_view name : names) {
    if (name.find(word) != name.npos) return {};
  }
  return not_found(fmt::format("no format has \"{}\" in its name; the closest are {}",
                               printable(word), nearest_names(word, names, 3)));
}

Result<Json> all_json(const std::string& word) {
  Json json = {{"formats", Json::array()}, {"presets", Json::array()}};
  for (const FormatInfo& f : all_formats()) {
    if (f.name.find(word) != f.name.npos) json["formats"].push_back(format_json(f));
  }
  for (const Preset& preset : all_presets()) {
    if (preset.name.find(word) == preset.name.npos) continue;
    KVANT_ASSIGN(const auto pairs, expansions(preset));
    KVANT_ASSIGN(const FormatPair wide, wide_expansion(preset));
    json["presets"].push_back({{"name", preset.name},
                               {"summary", preset.summary},
                               {"without_qk_norm", pairs.first.name()},
                               {"with_qk_norm", pairs.second.name()},
                               {"v_of_wide_heads", wide.value}});
  }
  return json;
}

}  // namespace

Status run_formats(const Invocation& in) {
  const std::string& word = in.model;
  KVANT_TRY(check_word(word));
  if (!in.settings.json.empty()) {
    KVANT_ASSIGN(const Json json, all_json(word));
    KVANT_TRY(write_json(in.settings.json, json));
    if (takes_output(in.settings.json)) return {};
  }
  const bool colored = has_colors(stdout);
  KVANT_ASSIGN(const std::string presets, render_presets(word, colored));
  return write_text("-",
                    fmt::format("{}{}{}", presets, render_formats(word, colored), kFormatNotes));
}

}  // namespace kvant::cli
