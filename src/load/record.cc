#include "load/record.h"

#include <array>

namespace kvant::load {

std::string_view outcome_name(Outcome outcome) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "success",   "connect",     "time-out",          "HTTP status", "early close",
      "malformed", "error event", "wrong token count", "cut off"};
  return kNames[static_cast<size_t>(outcome)];
}

}  // namespace kvant::load
