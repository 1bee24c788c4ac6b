#include "load/slo.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

namespace kvant::load {
namespace {

// Divided where it is less than a second, so that 100ms is the double that is written 0.1.
struct TimeUnit {
  std::string_view name;
  double seconds, per_second;
};
constexpr TimeUnit kUnits[] = {{"us", 1, 1e6}, {"ms", 1, 1e3}, {"s", 1, 1}, {"m", 60, 1}};

struct Limit {
  std::string_view name;
  std::optional<double> Slo::*field;
};
constexpr Limit kLimits[] = {
    {"ttft", &Slo::ttft}, {"tpot", &Slo::tpot}, {"itl", &Slo::itl}, {"e2e", &Slo::e2e}};

// The number at the start of `text`, which loses it.
std::optional<double> take_number(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  double value = 0;
  const auto [last, error] = std::from_chars(text.data(), text.data() + end, value);
  if (error != std::errc() || last != text.data() + end || !std::isfinite(value))
    return std::nullopt;
  text.remove_prefix(end);
  return value;
}

std::optional<double> parse_time(std::string_view text) {
  const std::optional<double> number = take_number(text);
  if (!number || *number <= 0) return std::nullopt;
  for (const TimeUnit& unit : kUnits) {
    if (unit.name == text) return *number * unit.seconds / unit.per_second;
  }
  return std::nullopt;
}

std::optional<double> parse_share(std::string_view text) {
  const std::optional<double> number = take_number(text);
  if (!number || (text != "%" && !text.empty())) return std::nullopt;
  const double share = text.empty() ? *number : *number / 100;
  return share <= 1 ? std::optional(share) : std::nullopt;
}

}  // namespace

Result<Slo> parse_slo(std::string_view text) {
  Slo slo;
  slo.text = text;
  std::set<std::string_view> seen;
  const auto refused = [&](std::string_view item, std::string_view wanted) {
    return invalid_argument(fmt::format("--slo {}: \"{}\"; wanted {}", text, item, wanted));
  };
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, end - at);
    at = end + 1;
    const size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const std::string_view value = equals == item.npos ? "" : item.substr(equals + 1);
    if (!seen.insert(name).second) return refused(item, fmt::format("{} once", name));
    if (name == "failures") {
      const std::optional<double> share = parse_share(value);
      if (!share) return refused(item, "a share of requests, as in failures=1%");
      slo.failures = *share;
      continue;
    }
    const auto limit = std::find_if(std::begin(kLimits), std::end(kLimits),
                                    [&](const Limit& known) { return known.name == name; });
    if (limit == std::end(kLimits))
      return refused(item, "ttft=, tpot=, itl= or e2e= and a time, or failures= and a share");
    slo.*limit->field = parse_time(value);
    if (!(slo.*limit->field))
      return refused(item, fmt::format("a time, as in {}=100ms or 2s", name));
  }
  return slo;
}

}  // namespace kvant::load
