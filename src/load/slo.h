// Slo: the limits that a service is held to.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::load {

// Seconds; a limit that isn't set holds nobody to anything.
struct Slo {
  std::optional<double> ttft, tpot, itl, e2e;
  double failures = 0;  // the share of requests that may fail, for the search of the largest load
  std::string text;     // as given

  bool any() const { return ttft || tpot || itl || e2e; }
};

// "ttft=2s,itl=100ms,tpot=80ms,e2e=1m,failures=1%": times in us, ms, s or m. invalid_argument
// otherwise.
Result<Slo> parse_slo(std::string_view text);

}  // namespace kvant::load
