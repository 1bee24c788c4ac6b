// Interrupt: work that can be cut short. The first Ctrl-C asks for it, the next one ends the
// program.
#pragma once

#include <csignal>

namespace kvant::cli {

class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // Of the innermost scope.
  static bool interrupted();

 private:
  struct sigaction before_ = {};
};

}  // namespace kvant::cli
