#include "load/find_max.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvant::load {

Result<FoundMax> find_max(int64_t most, const std::function<Result<Probe>(int64_t)>& probe) {
  FoundMax found;
  int64_t fails = 0;  // the smallest that didn't keep them, 0: none yet
  std::string why;
  const auto resolution = [&] { return std::max<int64_t>(1, found.concurrency / 16); };
  while (fails == 0 || fails - found.concurrency > resolution()) {
    const int64_t next = fails == 0 ? std::min(most, std::max<int64_t>(1, 2 * found.concurrency))
                                    : found.concurrency + (fails - found.concurrency) / 2;
    KVANT_ASSIGN(Probe made, probe(next));
    found.probes.push_back(made);
    if (made.interrupted) {
      found.interrupted = true;
      found.reason = fmt::format("interrupted at {}", next);
      return found;
    }
    if (!made.violation.empty()) {
      fails = next;
      why = made.violation;
      if (next == 1) break;
      continue;
    }
    found.concurrency = next;
    if (next == most) {
      found.reason = fmt::format("{} is the most that was to be tried (--max-concurrency)", most);
      return found;
    }
  }
  found.reason = fmt::format("at {}: {}", fails, why);
  return found;
}

}  // namespace kvant::load
