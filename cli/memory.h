// Memory: what a run takes and what there is, so that too much is refused by name before any work
// is done, and an allocation that fails all the same can be explained.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvant/status.h"

namespace kvant::cli {

// Bytes that this process can still take: what the system calls available, or less where its
// control group or its address space ends before.
uint64_t available_memory();

// Bytes of the machine, 0 if it doesn't say.
uint64_t total_memory();

class MemoryBudget {
 public:
  // `what` stands after "for", `remedy` says how to make it smaller.
  void add(std::string what, double bytes, std::string remedy);

  // exhausted if all of it together is more than `available` bytes.
  Status check(uint64_t available) const;
  // What to say when memory ran out in spite of that.
  std::string explain_shortage() const;
  // "; a smaller --context takes less", of the largest part; "" without parts. For the end of
  // either sentence, and of any other about memory.
  std::string advice() const;

 private:
  struct Part {
    std::string what;
    double bytes;
    std::string remedy;
  };
  std::string parts_text() const;

  std::vector<Part> parts_;  // the largest first
};

}  // namespace kvant::cli
