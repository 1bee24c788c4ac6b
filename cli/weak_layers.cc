#include "cli/weak_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/terminal.h"
#include "evaluate/attention_error.h"

namespace kvant::cli {
namespace {

// More of them than this share of the model, and it is the format that is weak.
constexpr size_t kLayersPerWeakOne = 4;

WeakLayers weak_layers(const std::string& format, const AttentionErrors& errors) {
  WeakLayers weak{.format = format, .layers = sensitive_layers(errors)};
  std::vector<double> outputs;
  for (const AttentionError& layer : errors.layers) outputs.push_back(layer.outputs);
  for (const int layer : weak.layers) {
    const double error = outputs[static_cast<size_t>(layer)];
    weak.error = weak.error == 0 ? error : std::min(weak.error, error);
  }
  std::sort(outputs.begin(), outputs.end());
  weak.median_error = outputs[(outputs.size() - 1) / 2];
  return weak;
}

}  // namespace

Result<std::vector<WeakLayers>> find_weak_layers(const OpenModel& open,
                                                 std::span<const int32_t> tokens,
                                                 std::span<const CachePlanChoice* const> choices,
                                                 int chunk) {
  std::vector<WeakLayers> found;
  if (choices.empty() || tokens.size() < 2 * AttentionTrace::kQueries) return found;
  Progress progress("looking for weak layers");
  KVANT_ASSIGN(const AttentionTrace trace,
               trace_attention(*open.model, *open.threads, tokens, chunk));
  for (size_t i = 0; i < choices.size(); ++i) {
    progress.update(static_cast<double>(i + 1) / static_cast<double>(choices.size() + 1));
    KVANT_ASSIGN(const AttentionErrors errors,
                 attention_errors(trace, choices[i]->options, *open.threads));
    WeakLayers weak = weak_layers(choices[i]->name, errors);
    if (!weak.layers.empty() && kLayersPerWeakOne * weak.layers.size() <= errors.layers.size()) {
      found.push_back(std::move(weak));
    }
  }
  return found;
}

std::string describe(const WeakLayers& weak) {
  const std::string list = fmt::format("{}", fmt::join(weak.layers, ","));
  const bool one = weak.layers.size() == 1;
  return fmt::format(
      "{}: attention of layer{} {} is {:.0f} % off or more, that of the median layer {:.1f} %; "
      "--kv-layers \"{}=bf16\" keeps {} exact.",
      weak.format, one ? "" : "s", list, 100 * weak.error, 100 * weak.median_error, list,
      one ? "it" : "them");
}

}  // namespace kvant::cli
