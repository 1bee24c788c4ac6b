// CacheSize: how large a cache is and what that is per element, said only where it says something.
#pragma once

#include <optional>
#include <string>

#include "kvant/cache.h"

namespace kvant::cli {

// Bits held per element of the tokens' K and V. Nothing where they would say nothing about the
// format: few tokens in pages with room for 64, or formats that seal before any page is.
// `exact_bits`: of a cache that never seals (CachePlanChoice::exact_bits), else 0.
std::optional<double> effective_bits(const CacheUsage& usage, double exact_bits);

// "1.20 MB, 8.61 bits per element", or "47.2 kB, no page sealed yet".
std::string describe_size(const CacheUsage& usage, double exact_bits);

}  // namespace kvant::cli
