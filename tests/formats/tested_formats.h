// The formats that a test goes through which runs a whole cache or model in each.
#pragma once

#include <string>
#include <vector>

#include "formats/family.h"
#include "kvant/cache.h"

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

// What a layer must give a format that needs calibration, meaning nothing; null for others.
inline std::shared_ptr<const HeadArtifacts> any_artifacts(const FormatInfo& info, int num_heads,
                                                          int dim) {
  const auto& any = definition_of(info).any_artifact;
  if (!any) return nullptr;
  return std::make_shared<HeadArtifacts>(static_cast<size_t>(num_heads), any(dim));
}

}  // namespace kvant
