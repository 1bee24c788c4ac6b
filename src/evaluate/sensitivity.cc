#include "evaluate/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

namespace kvant {
namespace {

// Caches that advance in lock step: each set pays for a baseline of its own, each cache for memory.
constexpr size_t kRunsAtOnce = 8;

const FormatPair kExact = {"bf16", "bf16"};

// The runs of one layer alone, and whose results they are.
struct LoneLayer {
  size_t run = 0, layer = 0;
};

CacheOptions alone(const CacheOptions& cache, size_t layer) {
  CacheOptions options = cache;
  for (size_t l = 0; l < options.layers.size(); ++l) {
    if (l != layer) options.layers[l].formats = kExact;
  }
  return options;
}

// Mean ranks, from 0.
std::vector<double> ranks(std::span<const double> series) {
  std::vector<size_t> order(series.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return series[a] < series[b]; });
  std::vector<double> out(series.size());
  for (size_t first = 0; first < order.size();) {
    size_t end = first + 1;
    while (end < order.size() && series[order[end]] == series[order[first]]) ++end;
    for (size_t i = first; i < end; ++i) out[order[i]] = static_cast<double>(first + end - 1) / 2;
    first = end;
  }
  return out;
}

}  // namespace

Result<std::vector<std::vector<SeriesSummary>>> harms_by_layer(Model& model, ThreadPool& threads,
                                                               std::span<const int32_t> tokens,
                                                               std::span<const EvaluatedRun> runs,
                                                               const EvaluationOptions& options) {
  std::vector<std::vector<SeriesSummary>> harms;
  std::vector<LoneLayer> todo;
  for (size_t r = 0; r < runs.size(); ++r) {
    const std::vector<CacheLayer>& layers = runs[r].cache.layers;
    harms.emplace_back(layers.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      if (layers[l].num_kv_heads > 0 && layers[l].shares < 0 && layers[l].formats != kExact)
        todo.push_back({r, l});
    }
  }
  for (size_t first = 0; first < todo.size(); first += kRunsAtOnce) {
    const size_t count = std::min(kRunsAtOnce, todo.size() - first);
    const std::span<const LoneLayer> batch = std::span(todo).subspan(first, count);
    std::vector<EvaluatedRun> lone;
    for (const LoneLayer& one : batch) {
      lone.push_back({"layer " + std::to_string(one.layer) + " in " + runs[one.run].name,
                      alone(runs[one.run].cache, one.layer)});
    }
    EvaluationOptions batch_options = options;
    batch_options.decode_steps = 0;
    batch_options.baseline = true;
    if (options.progress) {
      batch_options.progress = [&](double share) {
        options.progress((static_cast<double>(first) + share * static_cast<double>(count)) /
                         static_cast<double>(todo.size()));
      };
    }
    KVANT_ASSIGN(const std::vector<EvaluationResult> results,
                 evaluate(model, threads, tokens, lone, batch_options));
    for (size_t i = 0; i < count; ++i) harms[batch[i].run][batch[i].layer] = results[i].kld;
  }
  return harms;
}

double rank_correlation(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double mean = (static_cast<double>(x.size()) - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

std::vector<int> least_harmful_mix(std::span<const std::vector<LayerCost>> layers,
                                   uint64_t budget) {
  // In units that all sizes are whole multiples of; never more of them than the largest mix takes.
  uint64_t unit = 0, most = 0;
  for (const std::vector<LayerCost>& formats : layers) {
    uint64_t largest = 0;
    for (const LayerCost& cost : formats) {
      unit = std::gcd(unit, cost.bytes);
      largest = std::max(largest, cost.bytes);
    }
    most += largest;
  }
  unit = std::max<uint64_t>(unit, 1);
  const auto units = static_cast<size_t>(std::min(budget, most) / unit);

  // least[u]: of the layers so far, in at most u units.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> least(units + 1, 0.0);
  std::vector<std::vector<uint8_t>> chosen;
  for (const std::vector<LayerCost>& formats : layers) {
    std::vector<size_t> by_size(formats.size());
    std::iota(by_size.begin(), by_size.end(), size_t{0});
    std::stable_sort(by_size.begin(), by_size.end(),
                     [&](size_t a, size_t b) { return formats[a].bytes < formats[b].bytes; });
    std::vector<double> next(units + 1, kNever);
    std::vector<uint8_t>& choice = chosen.emplace_back(units + 1, 0);
    for (const size_t f : by_size) {
      const auto size = static_cast<size_t>(formats[f].bytes / unit);
      for (size_t u = size; u <= units; ++u) {
        const double harm = least[u - size] + formats[f].harm;
        if (harm < next[u]) {
          next[u] = harm;
          choice[u] = static_cast<uint8_t>(f);
        }
      }
    }
    least = std::move(next);
  }
  if (least.back() == kNever) return {};
  // The fewest units that do no more harm.
  auto left =
      static_cast<size_t>(std::find(least.begin(), least.end(), least.back()) - least.begin());
  std::vector<int> mix(layers.size());
  for (size_t l = layers.size(); l-- > 0;) {
    mix[l] = chosen[l][left];
    left -= static_cast<size_t>(layers[l][static_cast<size_t>(mix[l])].bytes / unit);
  }
  return mix;
}

}  // namespace kvant
