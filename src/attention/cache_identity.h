// The identity of a cache's pages: one name for everything that their bits depend on beside the
// tokens.
#pragma once

#include <string>

#include "kvant/cache.h"
#include "simd/cpu.h"

namespace kvant {

// 32 hexadecimal digits over options.model_identity, every layer's shape, formats, scales,
// artifacts and RoPE, sinks, exact window, rotation seed, the instruction set whose recipe the
// kernels follow, and the layout of pages. Two caches of one identity have the same bytes for the
// same tokens; budgets (max_bytes and the like) don't enter.
std::string cache_identity(const CacheOptions& options, Isa isa);

}  // namespace kvant
