// Given scales: what a number from calibration, a checkpoint or a caller must be, checked in the
// type that scales are stored in.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

#include "formats/stored_scale.h"
#include "kvant/status.h"

namespace kvant {

inline bool scale_can_be_stored(float scale) {
  return std::isfinite(scale) && scale > 0 && scale <= kMaxStored && f32_to_f16(scale) != 0;
}

// corrupt: `where` says which tensor of which file.
inline Status check_stored_scale(float scale, const std::string& where) {
  if (scale_can_be_stored(scale)) return {};
  char seen[32];
  std::snprintf(seen, sizeof seen, "%g", static_cast<double>(scale));
  return corrupt(where + ": the scale " + seen +
                 " isn't a positive finite number that binary16 holds");
}

}  // namespace kvant
