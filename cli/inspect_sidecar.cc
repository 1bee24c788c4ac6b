#include "cli/inspect_sidecar.h"

#include <fmt/format.h>

#include <filesystem>

#include "cli/scale_report.h"
#include "cli/sensitivity_report.h"
#include "cli/terminal.h"
#include "formats/names.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

// Layers that have bits for a format.
std::vector<int> layers_with(const SidecarContents& contents, const std::string& format) {
  std::vector<int> out;
  for (size_t l = 0; l < contents.transforms.size(); ++l) {
    if (contents.transforms[l].bits.contains(format)) out.push_back(static_cast<int>(l));
  }
  return out;
}

std::string sensitivity_text(const Sensitivities& s, bool per_head, bool colored) {
  const ProposedMix& mix = s.proposal;
  std::string out = fmt::format("\nsensitivities on {} of text {}\n  made by {}\n",
                                counted(s.tokens, "token"), s.data.substr(0, 8), s.command);
  out += sensitivity_table(s, per_head, {}, colored);
  out += fmt::format("mix of {:.2f} bits (--budget {:g}): {}; KLD {}\n", mix.sealed_bits,
                     mix.budget, mix_options(mix), short_number(mix.kld));
  return out;
}

}  // namespace

Result<std::optional<Sidecar>> lone_sidecar(const std::string& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const bool has_one = is_folder ? fs::exists(fs::path(path) / kSidecarName, error)
                                 : fs::path(path).extension() == ".safetensors";
  if (!has_one || (is_folder && fs::exists(fs::path(path) / "config.json", error)))
    return std::optional<Sidecar>();
  KVANT_ASSIGN(Sidecar sidecar, Sidecar::open(path));
  return std::optional<Sidecar>(std::move(sidecar));
}

std::string sidecar_text(const Sidecar& sidecar, bool per_head, bool colored) {
  const SidecarContents& contents = sidecar.contents();
  std::string out = sidecar_heading(sidecar);
  for (const std::string& format : sidecar.all_formats()) {
    const std::vector<int> layers = layers_with(contents, format);
    out += fmt::format("{}: a basis and bits for K of layers {}\n", format, index_ranges(layers));
  }
  out += scale_summary(contents.scales, contents.scales.checked_on);
  if (!contents.scales.all_formats().empty()) out += "(--scales lists them)\n";
  if (!contents.sensitivities.formats.empty())
    out += sensitivity_text(contents.sensitivities, per_head, colored);
  return out;
}

Json sidecar_json(const Sidecar& sidecar) {
  const SidecarContents& contents = sidecar.contents();
  const SidecarFacts& facts = contents.facts;
  Json formats = Json::object();
  for (const std::string& format : sidecar.all_formats())
    formats[format] = layers_with(contents, format);
  return {{"path", sidecar.path().string()},
          {"model", facts.model},
          {"data", facts.data},
          {"tokens", facts.tokens},
          {"seed", facts.seed},
          {"command", facts.command},
          {"formats", formats},
          {"scales", scales_json(contents.scales)},
          {"sensitivities", contents.sensitivities.formats.empty()
                                ? Json()
                                : sensitivities_json(contents.sensitivities)}};
}

}  // namespace kvant::cli
