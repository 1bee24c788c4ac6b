// The formats that a test goes through which does something costly in each.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "formats/family.h"
#include "kvant/cache.h"
#include "slow_build.h"

namespace kvant {

inline bool is_of_one_kind(const FormatInfo& a, const FormatInfo& b) {
  return a.family == b.family && a.granularity == b.granularity && a.zero_point == b.zero_point &&
         a.token_norm == b.token_norm && a.rotated == b.rotated;
}

// Whether others have all of a format's code, so that slow builds leave it out. They take
//  - every kind, at 4 bits where it has them: codes that share bytes;
//  - every width per token and per channel, the two ways in which codes are packed;
//  - groups of 32 channels for those of any size;
//  - of what only wraps another format, in a rotation or a search for its grid, 4 bits, and nothing
//    that does both.
inline bool is_like_others(const FormatInfo& info) {
  const bool searches = info.layout != info.name;
  if (info.group > 32 || (info.rotated && searches)) return true;
  if (info.exact || info.nominal_bits == 4) return false;
  if (info.rotated || searches) return true;
  const bool has_4_bits = std::ranges::any_of(all_formats(), [&](const FormatInfo& other) {
    return other.nominal_bits == 4 && is_of_one_kind(other, info);
  });
  return has_4_bits && (info.zero_point || info.granularity == Granularity::kGroup);
}

// True of all formats; in a slow build of those that aren't like others.
inline bool is_tested(const FormatInfo& info) { return !kSlowBuild || !is_like_others(info); }

inline std::vector<std::string> tested_formats() {
  std::vector<std::string> names;
  for (const FormatInfo& info : all_formats())
    if (is_tested(info)) names.push_back(info.name);
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
