// kvant formats: the registry, and what the presets stand for.

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "formats/codec.h"
#include "kvant/format.h"

namespace kvant::cli {
namespace {

constexpr int kShownDim = 128;  // the head size at which bits and kernels are shown

std::string kernel_of(const FormatInfo& format, Side side) {
  CodecBinding binding;
  binding.side = side;
  binding.dim = kShownDim;
  const CodecArtifacts artifacts;
  binding.artifacts = &artifacts;
  const Result<std::unique_ptr<Codec>> codec = bind_codec(format, binding);
  return codec.ok() ? (*codec)->kernel_name() : "-";
}

std::string granularity_text(const FormatInfo& f) {
  if (f.granularity == Granularity::kGroup) return fmt::format("token x {} channels", f.group);
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
          {"rotated", f.rotated},
          {"exact", f.exact},
          {"scale_source", scale_source_name(f.scale_source)},
          {"before_rope", f.before_rope},
          {"keys", f.for_keys},
          {"values", f.for_values},
          {"kernel_k", f.for_keys ? Json(kernel_of(f, Side::kKey)) : Json()},
          {"kernel_v", f.for_values ? Json(kernel_of(f, Side::kValue)) : Json()}};
}

// The preset's pair on a model without and with q/k norms.
Result<std::pair<FormatPair, FormatPair>> expansions(const Preset& preset) {
  KVANT_ASSIGN(FormatPair plain, parse_format_pair(preset.name, ModelTraits{.qk_norm = false}));
  KVANT_ASSIGN(FormatPair normed, parse_format_pair(preset.name, ModelTraits{.qk_norm = true}));
  return std::pair{std::move(plain), std::move(normed)};
}

std::string render_formats(bool colored) {
  Table table({{"format", true},
               {"bits"},
               {"sealed K"},
               {"sealed V"},
               {"scale per", true},
               {"zero", true},
               {"rotated", true},
               {"scale from", true},
               {"K stored", true},
               {"for", true},
               {"kernel", true}});
  for (const FormatInfo& f : all_formats()) {
    table.add_row({{f.name, Color::kBold},
                   {fmt::format("{:g}", f.nominal_bits)},
                   {f.for_keys ? fmt::format("{:.2f}", bits_of(f, Side::kKey)) : "-"},
                   {f.for_values ? fmt::format("{:.2f}", bits_of(f, Side::kValue)) : "-"},
                   {granularity_text(f)},
                   {f.zero_point ? "yes" : "no"},
                   {f.rotated ? "yes" : "no"},
                   {std::string(scale_source_name(f.scale_source))},
                   {f.for_keys ? (f.before_rope ? "before RoPE" : "after RoPE") : "-"},
                   {std::string(sides_of(f))},
                   {kernel_of(f, f.for_keys ? Side::kKey : Side::kValue)}});
  }
  return table.render(colored);
}

Result<std::string> render_presets(bool colored) {
  Table table({{"preset", true},
               {"on models without q/k norms", true},
               {"with q/k norms", true},
               {"for", true}});
  for (const Preset& preset : all_presets()) {
    KVANT_ASSIGN(const auto pairs, expansions(preset));
    table.add_row({{std::string(preset.name), Color::kBold},
                   {pairs.first.name()},
                   {pairs.first == pairs.second ? "the same" : pairs.second.name()},
                   {std::string(preset.summary)}});
  }
  return table.render(colored);
}

}  // namespace

Status run_formats(const Invocation& in) {
  if (!in.settings.json.empty()) {
    Json json = {{"formats", Json::array()}, {"presets", Json::array()}};
    for (const FormatInfo& f : all_formats()) json["formats"].push_back(format_json(f));
    for (const Preset& preset : all_presets()) {
      KVANT_ASSIGN(const auto pairs, expansions(preset));
      json["presets"].push_back({{"name", preset.name},
                                 {"summary", preset.summary},
                                 {"without_qk_norm", pairs.first.name()},
                                 {"with_qk_norm", pairs.second.name()}});
    }
    KVANT_TRY(write_json(in.settings.json, json));
    if (takes_output(in.settings.json)) return {};
  }
  const bool colored = has_colors(stdout);
  KVANT_ASSIGN(const std::string presets, render_presets(colored));
  return write_text("-", fmt::format("{}\n{}\nBits and kernels are those of a head of {} channels; "
                                     "sealed bits count scales, zero points and padding.\n"
                                     "A page is 64 tokens; an open page, sinks and the exact "
                                     "window stay exact (bf16) beside sealed pages.\n",
                                     presets, render_formats(colored), kShownDim));
}

}  // namespace kvant::cli
