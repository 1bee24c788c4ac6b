// The formats that a test goes through which runs a whole cache or model in each.
#pragma once

#include <string>
#include <vector>

#include "kvant/format.h"

namespace kvant {

// All formats. Sanitized builds, ten times slower, take one of each layout, and of the rotated ones
// those of 4 bits: the others have the same bytes and read path, or the same rotation around them.
inline std::vector<std::string> tested_formats() {
  std::vector<std::string> names;
  for (const FormatInfo& info : all_formats()) {
    const bool is_alike = info.layout != info.name || (info.rotated && info.nominal_bits != 4);
    if (*KVANT_SANITIZED == 0 || !is_alike) names.push_back(info.name);
  }
  return names;
}

}  // namespace kvant
