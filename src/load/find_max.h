// find_max: the largest concurrency that a server bears under an SLO, by doubling, then bisection.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvant/status.h"

namespace kvant::load {

struct Probe {
  int64_t concurrency = 0;
  std::string violation;  // "": the limits were kept
  bool interrupted = false;
};

struct FoundMax {
  int64_t concurrency = 0;    // 0: not even one
  std::vector<Probe> probes;  // in the order in which they were made
  std::string reason;         // why the search ended, a sentence's end
  bool interrupted = false;
};

// Tries 1, 2, 4, … up to `most`, then halves the interval between the largest that kept the limits
// and the smallest that didn't, until it is at most 1, or a sixteenth of the lower end: a probe
// takes as long as a level does. What keeps the limits is taken to keep them at any lower
// concurrency, too.
Result<FoundMax> find_max(int64_t most, const std::function<Result<Probe>(int64_t)>& probe);

}  // namespace kvant::load
