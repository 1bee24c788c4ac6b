// LevelSummary: what the records of one level say, by the definitions of docs/load.md. All times
// are seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "load/record.h"
#include "load/slo.h"
#include "load/statistics.h"

namespace kvant::load {

struct LevelSummary {
  int64_t succeeded = 0, failed = 0, cut_off = 0;  // of the counted requests
  std::map<std::string, int64_t> failures;         // "connect", "HTTP status 503", …
  std::string first_failure;                       // the detail of one, "" if there is none
  double seconds = 0;  // from the first counted request's sending to the last one's end

  Spread ttft, tpot, itl, e2e;  // of requests that succeeded

  double request_rate = 0;                        // successes per second
  std::optional<double> output_rate, total_rate;  // tokens per second; none: not all are known
  std::optional<int64_t> prompt_tokens, output_tokens, cached_tokens;
  std::optional<double> goodput, good_share;  // none without an SLO

  int64_t uncounted = 0;           // successes whose tokens nobody counted
  int64_t retokenized = 0;         // successes whose tokens the tokenizer counted
  int64_t other_prompt_count = 0;  // successes whose prompt the server counted otherwise
  double tokens_per_piece = 0;     // output tokens by pieces of text; 0: not known

  double failure_rate() const;  // of those that ended
};

// The tokens of an answer's text, or -1.
using TextCounter = std::function<int64_t(const std::string&)>;

// Output tokens are those of usage, else of `count` (may be empty); never a number of pieces.
LevelSummary summarize(std::span<const RequestRecord> records, const Slo& slo,
                       const TextCounter& count);

// Whether one request kept every limit: its TTFT, TPOT and E2E, and the 95th percentile of its own
// gaps. A limit on what it doesn't have (the TPOT of one token) is kept.
bool meets(const RequestRecord& record, int64_t output_tokens, const Slo& slo);

// What keeps a level from being stable under an SLO, as "P95 TTFT 2.31 s, limit 2 s"; "" if nothing
// does.
std::string violation(const LevelSummary& level, const Slo& slo);

}  // namespace kvant::load
