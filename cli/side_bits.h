// SideBits: what one side of some layers takes, by their formats alone.
#pragma once

#include <span>

#include "kvant/cache.h"

namespace kvant::cli {

// Of K or of V.
struct SideBits {
  double nominal = 0, sealed = 0;  // per element, averaged over the elements of all layers
  double bytes_per_token = 0;      // sealed, all layers
  double elements = 0;             // of one token
};

// Layers that read another's pages, and sides that have none, count nothing.
Result<SideBits> side_bits(std::span<const CacheLayer> layers, Side side);

}  // namespace kvant::cli
