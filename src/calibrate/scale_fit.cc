#include "calibrate/scale_fit.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "formats/codec.h"
#include "formats/fp4_types.h"
#include "formats/fp8_types.h"
#include "formats/names.h"

namespace kvant {
namespace {

float round_integer(float x) { return std::nearbyint(std::clamp(x, -127.0f, 127.0f)); }
float round_e4m3(float x) { return e4m3_to_f32(E4m3::encode(x)); }
float round_e5m2(float x) { return e5m2_to_f32(E5m2::encode(x)); }

// What a kind of format, the beginning of its names, makes of a scale.
struct Kind {
  std::string_view begin;
  float largest;
  float (*round)(float);
};
constexpr std::array<Kind, 4> kKinds = {{{"fp8_e4m3_", E4m3::kLargest, round_e4m3},
                                         {"fp8_e5m2_", E5m2::kLargest, round_e5m2},
                                         {"int8_", 127, round_integer},
                                         {"nvfp4_", kE2m1Largest* E4m3::kLargest, nullptr}}};

std::vector<ScaledFormat> formats_of_registry() {
  std::vector<ScaledFormat> out;
  for (const FormatInfo& info : all_formats()) {
    if (!takes_given_scale(info)) continue;
    const auto kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& row) {
      return info.name.starts_with(row.begin);
    });
    if (kind == kKinds.end()) continue;  // a test names it
    out.push_back({.name = info.name,
                   .per_head = info.scale_source != ScaleSource::kGiven,
                   .rotated = info.rotated,
                   .largest = kind->largest,
                   .round = kind->round});
  }
  return out;
}

constexpr int kShares = 80;  // of the largest magnitude, in steps of a hundredth

double squared_error(const Magnitudes& magnitudes, const ScaledFormat& format, float scale) {
  return magnitudes.sum([&](float x) {
    const double error = double{format.round(x / scale) * scale} - double{x};
    return error * error;
  });
}

float least_error_scale(const Magnitudes& magnitudes, const ScaledFormat& format, float largest) {
  float best = 0;
  double least = 0;
  for (int i = 0; i < kShares; ++i) {
    const float scale = largest * static_cast<float>(100 - i) / 100 / format.largest;
    const double error = squared_error(magnitudes, format, scale);
    if (i == 0 || error < least) {
      least = error;
      best = scale;
    }
  }
  return best;
}

}  // namespace

Result<ScaleMethod> parse_scale_method(std::string_view text) {
  if (text == "max") return ScaleMethod{};
  if (text == "mse") return ScaleMethod{.kind = ScaleMethod::Kind::kMse};
  constexpr std::string_view kPercentile = "percentile:";
  ScaleMethod out{.kind = ScaleMethod::Kind::kPercentile, .percent = 0};
  if (text.starts_with(kPercentile)) {
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + kPercentile.size(), end, out.percent);
    if (error == std::errc() && at == end && out.percent > 0 && out.percent <= 100) return out;
  }
  return invalid_argument("--method " + printable(text) +
                          ": wanted max, mse, or percentile:P with P above 0 and up to 100");
}

std::span<const ScaledFormat> scaled_formats() {
  static const std::vector<ScaledFormat> kFormats = formats_of_registry();
  return kFormats;
}

const ScaledFormat* find_scaled_format(std::string_view name) {
  const std::span<const ScaledFormat> formats = scaled_formats();
  const auto found = std::find_if(formats.begin(), formats.end(),
                                  [&](const ScaledFormat& format) { return format.name == name; });
  return found == formats.end() ? nullptr : &*found;
}

Status check_method(const ScaledFormat& format, const ScaleMethod& method) {
  if (method.kind != ScaleMethod::Kind::kMse || format.round != nullptr) return {};
  return invalid_argument("--method mse: " + std::string(format.name) +
                          " rounds whole blocks, each by a scale of its own; wanted max or "
                          "percentile:P");
}

float fit_scale(const Magnitudes& magnitudes, const ScaledFormat& format,
                const ScaleMethod& method) {
  const float largest = magnitudes.largest();
  if (largest == 0) return 0;
  if (method.kind == ScaleMethod::Kind::kMse) return least_error_scale(magnitudes, format, largest);
  const float held =
      method.kind == ScaleMethod::Kind::kMax ? largest : magnitudes.percentile(method.percent);
  // A percentile may lie among zeros; then the largest is what is left.
  return (held > 0 ? held : largest) / format.largest;
}

}  // namespace kvant
