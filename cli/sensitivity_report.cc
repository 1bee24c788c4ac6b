#include "cli/sensitivity_report.h"

#include <fmt/format.h>

#include "cli/terminal.h"

namespace kvant::cli {

std::string sensitivity_table(const Sensitivities& sensitivities, bool per_head,
                              std::span<const std::string> kinds, bool colored) {
  std::vector<Table::Column> columns = {{"layer", true}};
  if (!kinds.empty()) columns.push_back({"kind", true});
  for (const FormatSensitivities& format : sensitivities.formats) {
    columns.push_back({format.format + " scores"});
    columns.push_back({"outputs"});
    columns.push_back({"KLD alone"});
  }
  Table table(columns);
  const auto cells = [](std::vector<Cell>& row, const auto& error, std::string kld) {
    row.push_back({short_number(error.scores)});
    row.push_back({short_number(error.outputs)});
    row.push_back({std::move(kld)});
  };
  const std::vector<LayerSensitivity>& first = sensitivities.formats.front().layers;
  for (size_t i = 0; i < first.size(); ++i) {
    const int layer = first[i].layer;
    std::vector<Cell> row = {{fmt::format("{}", layer), Color::kBold}};
    if (!kinds.empty()) row.push_back({kinds[static_cast<size_t>(layer)]});
    for (const FormatSensitivities& format : sensitivities.formats) {
      const bool known = i < format.layers.size();
      const LayerSensitivity of = known ? format.layers[i] : LayerSensitivity();
      cells(row, of, short_number(of.kld));
    }
    table.add_row(row);
    for (size_t head = 0; per_head && head < first[i].heads.size(); ++head) {
      row = {{fmt::format("{}.{}", layer, head)}};
      if (!kinds.empty()) row.push_back({"head"});
      for (const FormatSensitivities& format : sensitivities.formats) {
        const bool known = i < format.layers.size() && head < format.layers[i].heads.size();
        cells(row, known ? format.layers[i].heads[head] : HeadSensitivity(), "");
      }
      table.add_row(row);
    }
  }
  return table.render(colored);
}

std::string mix_options(const ProposedMix& mix) {
  return fmt::format(
      "--kv {}{}", mix.kv,
      mix.kv_layers.empty() ? "" : fmt::format(" --kv-layers \"{}\"", mix.kv_layers));
}

Json sensitivities_json(const Sensitivities& sensitivities) {
  Json formats = Json::array();
  for (const FormatSensitivities& format : sensitivities.formats) {
    Json layers = Json::array();
    for (const LayerSensitivity& layer : format.layers) {
      Json heads = Json::array();
      for (const HeadSensitivity& head : layer.heads)
        heads.push_back({{"scores", head.scores}, {"outputs", head.outputs}});
      layers.push_back({{"layer", layer.layer},
                        {"scores", layer.scores},
                        {"outputs", layer.outputs},
                        {"kld", layer.kld},
                        {"kld_error", layer.kld_error},
                        {"heads", heads}});
    }
    formats.push_back({{"format", format.format}, {"layers", layers}});
  }
  const ProposedMix& mix = sensitivities.proposal;
  return {{"data", sensitivities.data},
          {"tokens", sensitivities.tokens},
          {"command", sensitivities.command},
          {"formats", formats},
          {"proposal",
           {{"kv", mix.kv},
            {"kv_layers", mix.kv_layers},
            {"budget", mix.budget},
            {"sealed_bits", mix.sealed_bits},
            {"kld", mix.kld},
            {"kld_error", mix.kld_error}}}};
}

}  // namespace kvant::cli
