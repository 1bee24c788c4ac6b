#include "cli/plan_layers.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal.h"

namespace kvant::cli {

std::string layer_kind(const ModelLayer& layer) {
  if (layer.shares >= 0) return "shared";
  if (!layer.streams.empty()) return std::string(stream_kind_name(layer.streams.front().kind));
  return layer.state.is_empty() ? "none" : "state";
}

std::string layer_parts(const ModelLayer& layer) {
  if (layer.shares >= 0 || layer.streams.empty()) return layer_kind(layer);
  std::string parts;
  for (const CacheStream& stream : layer.streams)
    parts += fmt::format("{}{}", parts.empty() ? "" : " + ", stream_kind_name(stream.kind));
  return parts + (layer.state.is_empty() ? "" : " + state");
}

double layer_bytes_per_token(const PlanReport& report, int layer) {
  double bytes = 0;
  for (const PlannedGroup& group : report.planner.groups()) {
    if (std::find(group.layers.begin(), group.layers.end(), layer) != group.layers.end())
      bytes += group.bytes_per_token() / static_cast<double>(group.layers.size());
  }
  return bytes;
}

std::string plan_layers_text(const PlanReport& report) {
  Table table(
      {{"layer", true}, {"kind"}, {"KV heads"}, {"K"}, {"V"}, {"window"}, {"B/token"}, {"state"}});
  for (size_t l = 0; l < report.shape.layers.size(); ++l) {
    const ModelLayer& layer = report.shape.layers[l];
    std::string label = fmt::format("{}", l);
    if (layer.shares >= 0) label += fmt::format(" reads {}", layer.shares);
    const double bytes = layer_bytes_per_token(report, static_cast<int>(l));
    const std::string state =
        layer.state.is_empty() ? "-" : bytes_text(report, layer.state.bytes());
    if (layer.streams.empty() || layer.shares >= 0) {
      table.add_row({{label}, {layer_kind(layer)}, {"-"}, {"-"}, {"-"}, {"-"}, {"-"}, {state}});
      continue;
    }
    for (size_t s = 0; s < layer.streams.size(); ++s) {
      const CacheStream& stream = layer.streams[s];
      table.add_row({{s == 0 ? label : ""},
                     {std::string(stream_kind_name(stream.kind))},
                     {fmt::format("{}", stream.heads)},
                     {fmt::format("{}", stream.k_dim)},
                     {stream.v_dim > 0 ? fmt::format("{}", stream.v_dim) : "-"},
                     {stream.window > 0 ? fmt::format("{}", stream.window) : "-"},
                     {s == 0 ? fmt::format("{}", bytes) : ""},
                     {s == 0 ? state : ""}});
    }
  }
  return fmt::format("\nlayers, bytes in {}\n", report.first_format) + table.render(false);
}

}  // namespace kvant::cli
