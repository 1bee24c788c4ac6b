#include "cli/stability.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "cli/calibration_run.h"
#include "cli/terminal.h"

namespace kvant::cli {
namespace {

constexpr int64_t kCounts[] = {128, 512, 1024};
constexpr double kMoved = 0.1;  // relative change that counts as one

struct Stage {
  int64_t documents = 0, tokens = 0;
  CacheScales scales;
};

// How far the scales of one side lie from the last stage's, relative, over layers and heads.
struct Distance {
  double median = 0, most = 0, moved = 0;
};

Distance distance(const CacheScales& a, const CacheScales& b, Side side, std::string_view format) {
  std::vector<double> changes;
  for (int l = 0; l < static_cast<int>(b.layers.size()); ++l) {
    const std::vector<float>* now = a.find(l, side, format);
    const std::vector<float>* last = b.find(l, side, format);
    for (size_t h = 0; now != nullptr && last != nullptr && h < last->size(); ++h)
      changes.push_back(std::fabs(double{(*now)[h]} / double{(*last)[h]} - 1));
  }
  if (changes.empty()) return {};
  std::sort(changes.begin(), changes.end());
  const auto moved =
      std::count_if(changes.begin(), changes.end(), [](double change) { return change > kMoved; });
  return {changes[changes.size() / 2], changes.back(),
          static_cast<double>(moved) / static_cast<double>(changes.size())};
}

// The counts that there are documents for; of fewer than 128, an eighth, a half and all.
std::vector<int64_t> stage_counts(int64_t available) {
  std::vector<int64_t> counts;
  for (const int64_t count : kCounts) {
    if (count <= available) counts.push_back(count);
  }
  if (counts.empty()) counts = {std::max<int64_t>(available / 8, 1), (available + 1) / 2};
  if (counts.back() < available) counts.push_back(available);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

// Documents in an order of the seed's: every count is a sample of all.
std::vector<size_t> shuffled(size_t count, uint64_t seed) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  Rng rng(seed);
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

Status print_stages(const Settings& settings, std::span<const Stage> stages,
                    const ScaleRequest& request, size_t num_documents) {
  Table table({{"documents"},
               {"tokens"},
               {"format", true},
               {"side", true},
               {"median"},
               {"most"},
               {"over 10 %"}});
  Json rows = Json::array();
  for (const Stage& stage : stages) {
    for (const ScaledFormat* format : request.formats) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        const Distance d = distance(stage.scales, stages.back().scales, side, format->name);
        table.add_row({{std::to_string(stage.documents)},
                       {std::to_string(stage.tokens)},
                       {std::string(format->name)},
                       {std::string(side_name(side))},
                       {fmt::format("{:.2f} %", 100 * d.median)},
                       {fmt::format("{:.2f} %", 100 * d.most)},
                       {fmt::format("{:.1f} %", 100 * d.moved)}});
        rows.push_back({{"documents", stage.documents},
                        {"tokens", stage.tokens},
                        {"format", format->name},
                        {"side", side_name(side)},
                        {"median", d.median},
                        {"most", d.most},
                        {"moved", d.moved}});
      }
    }
  }
  if (!settings.json.empty()) KVANT_TRY(write_json(settings.json, {{"stability", rows}}));
  if (takes_output(settings.json)) return {};
  return write_text(
      "-", table.render(has_colors(stdout)) +
               fmt::format("relative distance of a head's scale from that of all {} documents; the "
                           "last column: heads farther off than a tenth\n",
                           num_documents));
}

}  // namespace

Status run_stability(const Invocation& in, ScaleRequest request) {
  Settings settings = in.settings;
  if (!settings.is_given("samples")) settings.samples = kCounts[std::size(kCounts) - 1];
  if (request.formats.empty())
    request.formats = {find_scaled_format("fp8_e4m3_head"), find_scaled_format("int8_head")};
  KVANT_ASSIGN(const CalibrationText text, CalibrationText::open(settings, settings.data));
  KVANT_ASSIGN(const OpenModel open, open_model(in, {}));
  announce(in, open);
  const bool turns = needs_rotated(request);
  RangeStatistics ranges(open.model->info(), {.skipped = settings.sinks}, *open.threads);
  std::optional<RangeStatistics> rotated;
  if (turns)
    rotated.emplace(open.model->info(), RangeOptions{.skipped = settings.sinks, .rotated = true},
                    *open.threads);
  const Statistics statistics = {nullptr, &ranges, rotated ? &*rotated : nullptr};
  const std::vector<size_t> order = shuffled(text.size(), static_cast<uint64_t>(settings.seed));
  const std::vector<int64_t> counts = stage_counts(static_cast<int64_t>(text.size()));
  std::vector<Stage> stages;
  const auto after = [&](const CalibrationState& state) -> Status {
    if (std::find(counts.begin(), counts.end(), state.documents) == counts.end()) return {};
    std::vector<int> without;
    stages.push_back({state.documents, state.tokens,
                      fit_scales(seen_by(statistics), request, *open.threads, without)});
    return {};
  };
  CalibrationState state;
  KVANT_TRY(read_documents(in, open, {text, statistics, "reading", order, after}, state));

  return print_stages(in.settings, stages, request, text.size());
}

}  // namespace kvant::cli
