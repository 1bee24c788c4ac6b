// ReadShare: how many of an evaluation's cache reads came from sealed pages.
//
// An evaluation that never reads the quantized cache gives every format the same score. This
// counts, by the read rule of kvant/cache.h written a second time and on its own, what the queries
// of a run read: one read is one (query, key) pair of one layer and side.
#pragma once

#include <cstdint>

#include "kvant/cache.h"

namespace kvant {

struct ReadShare {
  double reads = 0;
  double sealed = 0;
  double share() const { return reads > 0 ? sealed / reads : 0; }
};

// Of `queries` tokens at positions [first, first + queries).
Result<ReadShare> count_reads(const CacheOptions& options, int64_t first, int64_t queries);

}  // namespace kvant
