// Read bandwidth of this machine's memory, measured: the roof against which attention on a cache is
// judged.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/threads.h"

namespace kvant {

class BandwidthMeter {
 public:
  // Touches `bytes` of memory, more than the caches hold. `threads` outlives the meter.
  explicit BandwidthMeter(ThreadPool& threads, uint64_t bytes = 128u << 20);

  // Reads all of it once with every thread; bytes per second.
  double measure();

 private:
  ThreadPool& threads_;
  AlignedArray<uint64_t> data_;
  uint64_t sink_ = 0;  // the sums end here, so that the reads can't be left out
};

}  // namespace kvant
