#include "plan/format_quality.h"

#include <algorithm>
#include <array>
#include <optional>

namespace kvant {
namespace {

// Where a format stands: before everything of `place`, where it isn't measured, else on it.
struct Standing {
  size_t place = 0;
  bool measured = false;
  double bits = 0;

  bool operator<(const Standing& other) const {
    if (place != other.place) return place < other.place;
    if (measured != other.measured) return other.measured;
    return !measured && bits > other.bits;
  }
};

std::optional<size_t> measured_place(const RankedFormat& format) {
  const std::span<const std::string_view> order = formats_by_quality();
  const auto at = std::find(order.begin(), order.end(), format.name);
  if (at != order.end()) return static_cast<size_t>(at - order.begin());
  for (size_t i = 0; i < order.size(); ++i) {
    const Result<FormatPair> pair = parse_format_pair(order[i], format.traits);
    if (pair.ok() && *pair == format.pair) return i;
  }
  return std::nullopt;
}

// `measured`: the bits of formats_by_quality(), 0 where the model can't have one.
size_t place_by_bits(double bits, std::span<const double> measured) {
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i] > 0 && measured[i] < bits) return i;
  }
  return measured.size();
}

}  // namespace

std::span<const std::string_view> formats_by_quality() {
  static constexpr std::array<std::string_view, 12> kOrder = {
      "f32", "bf16", "f16",   "int8", "int8_token", "k8v4",
      "fp8", "int4", "kivi4", "int3", "int2",       "kivi2"};
  return kOrder;
}

QualityOrder order_by_quality(std::span<const RankedFormat> formats,
                              const std::function<double(const std::string&)>& bits_of) {
  std::vector<std::pair<Standing, std::string>> standings;
  QualityOrder order;
  std::vector<double> measured;  // asked for when the first format needs it
  for (const RankedFormat& format : formats) {
    const std::optional<size_t> place = measured_place(format);
    if (!place) order.by_bits.push_back(format.name);
    if (!place && measured.empty()) {
      for (const std::string_view name : formats_by_quality())
        measured.push_back(bits_of(std::string(name)));
    }
    standings.push_back({{.place = place ? *place : place_by_bits(format.bits, measured),
                          .measured = place.has_value(),
                          .bits = format.bits},
                         format.name});
  }
  std::stable_sort(standings.begin(), standings.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [standing, name] : standings) order.formats.push_back(std::move(name));
  return order;
}

}  // namespace kvant
