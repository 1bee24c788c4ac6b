#include "cli/calibrate_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "formats/names.h"

namespace kvant::cli {
namespace {

std::span<const Target> all_targets() {
  static const Target kTargets[] = {{"tc4", {.mean_bits = 4, .widths = {1, 2, 3, 4, 5, 6, 8}}},
                                    {"tc3", {.mean_bits = 3, .widths = {1, 2, 3, 4, 5, 6, 8}}},
                                    {"tc2", {.mean_bits = 2, .widths = {1, 2, 3, 4, 5, 6, 8}}},
                                    {"bal8", {.mean_bits = 8, .widths = {}}, true},
                                    {"bal4", {.mean_bits = 4, .widths = {}}, true},
                                    {"bal3", {.mean_bits = 3, .widths = {}}, true},
                                    {"bal2", {.mean_bits = 2, .widths = {}}, true}};
  return kTargets;
}

Status add_target(const std::string& name, Targets& targets) {
  const size_t before = targets.transforms.size();
  for (const Target& target : all_targets()) {
    const bool is_tc = target.format.starts_with("tc");
    if (target.format == name || (is_tc && name == "tc")) targets.transforms.push_back(&target);
  }
  if (targets.transforms.size() > before) return {};
  if (const ScaledFormat* format = find_scaled_format(name)) {
    targets.scales.formats.push_back(format);
    return {};
  }
  std::string wanted = "tc";
  for (const Target& target : all_targets()) wanted += fmt::format(", {}", target.format);
  for (const ScaledFormat& format : scaled_formats()) wanted += fmt::format(", {}", format.name);
  return invalid_argument(
      fmt::format("--for {}: wanted formats out of {}", printable(name), wanted));
}

Result<Targets> targets_of(const Settings& s) {
  Targets targets;
  KVANT_ASSIGN(targets.scales.method, parse_scale_method(s.scale_method));
  for (const std::string& name : split_items(s.formats_for)) KVANT_TRY(add_target(name, targets));
  std::set<std::string_view> seen;
  const auto check = [&](std::string_view format) -> Status {
    if (seen.insert(format).second) return {};
    return invalid_argument(
        fmt::format("--for {}: {} is named twice, wanted each once", s.formats_for, format));
  };
  for (const Target* target : targets.transforms) KVANT_TRY(check(target->format));
  for (const ScaledFormat* format : targets.scales.formats) {
    KVANT_TRY(check(format->name));
    KVANT_TRY(check_method(*format, targets.scales.method));
  }
  return targets;
}

Result<Source> source_of(const Settings& s) {
  const std::pair<std::string_view, Source> sources[] = {
      {"dataset", Source::kDataset}, {"random", Source::kRandom}, {"fixed", Source::kFixed}};
  const auto found = std::find_if(std::begin(sources), std::end(sources),
                                  [&](const auto& row) { return row.first == s.source; });
  if (found == std::end(sources)) {
    return invalid_argument(
        fmt::format("--source {}: wanted dataset, random or fixed", printable(s.source)));
  }
  if (found->second == Source::kDataset && s.data.empty())
    return invalid_argument("--data: wanted a file of text to calibrate on");
  if (found->second != Source::kDataset && !s.data.empty()) {
    return invalid_argument(
        fmt::format("--source {} reads no --data; wanted one of the two", s.source));
  }
  return found->second;
}

// What a run may be, in which some options would do nothing.
enum class When : uint8_t { kStability, kFixed, kRandom, kBuckets, kTransformsOnly };

struct WhenRow {
  When when;
  std::string_view asked;  // by which option
  std::string_view why;    // and what was wanted
};
constexpr std::array<WhenRow, 5> kReasons = {{
    {When::kStability, "--stability", "a table is made and no calibration; wanted one of the two"},
    {When::kFixed, "--source fixed", "nothing is read or found; wanted one of the two"},
    {When::kRandom, "--source random", "random tokens have no bad lines; wanted one of the two"},
    {When::kBuckets, "--buckets", "each says how long documents are; wanted one of the two"},
    {When::kTransformsOnly, "--for", "transforms have no scales; wanted a format of given scales"},
}};

// Options that are refused because a run of this kind would pass over them.
struct Conflict {
  When when;
  std::string_view option;
};
constexpr Conflict kConflicts[] = {
    {When::kStability, "out"},
    {When::kStability, "resume"},
    {When::kStability, "held-out"},
    {When::kStability, "strict"},
    {When::kFixed, "method"},
    {When::kFixed, "samples"},
    {When::kFixed, "resume"},
    {When::kFixed, "held-out"},
    {When::kFixed, "sinks"},
    {When::kFixed, "max-length"},
    {When::kFixed, "buckets"},
    {When::kFixed, "seed"},
    {When::kFixed, "skip-bad"},
    {When::kFixed, "stability"},
    {When::kRandom, "skip-bad"},
    {When::kBuckets, "max-length"},
    {When::kTransformsOnly, "method"},
    {When::kTransformsOnly, "sinks"},
    {When::kTransformsOnly, "held-out"},
};

bool is_so(When when, const Settings& s, const CalibrateRequest& request) {
  switch (when) {
    case When::kStability:
      return s.stability;
    case When::kFixed:
      return request.source == Source::kFixed;
    case When::kRandom:
      return request.source == Source::kRandom && s.held_out.empty();
    case When::kBuckets:
      return !s.buckets.empty();
    case When::kTransformsOnly:
      return !s.stability && request.targets.scales.formats.empty();
  }
  return false;
}

Status check_together(const Settings& s, const CalibrateRequest& request) {
  for (const Conflict& conflict : kConflicts) {
    if (!s.is_given(conflict.option) || !is_so(conflict.when, s, request)) continue;
    const auto row = std::find_if(kReasons.begin(), kReasons.end(), [&](const WhenRow& reason) {
      return reason.when == conflict.when;
    });
    const std::string asked =
        row->asked == "--for" ? "--for " + s.formats_for : std::string(row->asked);
    return invalid_argument(
        fmt::format("--{} doesn't go with {}: {}", conflict.option, asked, row->why));
  }
  if (request.targets.transforms.empty()) return {};
  const std::string_view first = request.targets.transforms.front()->format;
  if (request.source == Source::kFixed) {
    return invalid_argument(fmt::format(
        "--source fixed: {} has nothing that could be fixed; wanted --for formats of given scales",
        first));
  }
  if (s.stability && s.is_given("for")) {
    return invalid_argument(fmt::format(
        "--stability: {} has no scales that could move; wanted --for formats of given scales",
        first));
  }
  return {};
}

}  // namespace

Result<CalibrateRequest> calibrate_request(const Settings& settings) {
  CalibrateRequest request;
  KVANT_ASSIGN(request.targets, targets_of(settings));
  KVANT_ASSIGN(request.source, source_of(settings));
  KVANT_TRY(check_together(settings, request));
  return request;
}

}  // namespace kvant::cli
