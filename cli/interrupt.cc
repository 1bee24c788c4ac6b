#include "cli/interrupt.h"

namespace kvant::cli {
namespace {

volatile std::sig_atomic_t asked = 0;

}  // namespace

InterruptScope::InterruptScope() {
  asked = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) { asked = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &before_);
}

InterruptScope::~InterruptScope() { sigaction(SIGINT, &before_, nullptr); }

bool InterruptScope::interrupted() { return asked != 0; }

}  // namespace kvant::cli
