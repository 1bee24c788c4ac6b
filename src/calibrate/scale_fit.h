// Scales of the formats that take a given one, from the magnitudes that they must hold.
//
//   max            the largest magnitude on the format's largest value: scale = max|x| / largest.
//                  This is the static min-max observer of llm-compressor for symmetric formats
//   percentile:P   the magnitude that P % of the numbers don't pass, likewise
//   mse            of 80 shares of the largest, 1 down to 0.21, that with the least mean squared
//                  error
//
// NVFP4's tensor scale is max|x| / (6·448), which puts the largest block's own scale on E4M3's
// largest; least squared error isn't told of single numbers there, so `mse` is refused.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "calibrate/magnitudes.h"
#include "kvant/format.h"
#include "kvant/status.h"

namespace kvant {

struct ScaleMethod {
  enum class Kind : uint8_t { kMax, kPercentile, kMse };
  Kind kind = Kind::kMax;
  double percent = 100;  // of kPercentile
};
// "max", "percentile:99.9", "mse"; invalid_argument otherwise.
Result<ScaleMethod> parse_scale_method(std::string_view text);

// A format that takes a given scale.
struct ScaledFormat {
  std::string_view name;
  bool per_head = false;  // one scale for each head, else one for all
  bool rotated = false;   // it stores rotated rows, whose magnitudes count
  float largest = 0;      // that a code stands for, at scale 1
  // To the nearest value of the format, at scale 1 and within ±largest; null where that isn't a
  // question of one number.
  float (*round)(float) = nullptr;
};
// Every one of the registry.
std::span<const ScaledFormat> scaled_formats();
const ScaledFormat* find_scaled_format(std::string_view name);  // null: none of that name

// invalid_argument where the method can't tell the format's scale.
Status check_method(const ScaledFormat& format, const ScaleMethod& method);

// 0 where the numbers are all zero, or there are none: no scale can be told.
float fit_scale(const Magnitudes& magnitudes, const ScaledFormat& format,
                const ScaleMethod& method);

}  // namespace kvant
