// Answer: one request run to its end, its text shown as it comes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/settings.h"

namespace kvant::cli {

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kRunning;  // kRunning: cancelled
  RequestStats stats;
  int64_t full_context = 0;  // tokens of the context, where it is what ended the answer
};

// Sampling, length and stops of a request, from the settings.
GenerationRequest make_request(const Settings& settings, std::vector<int32_t> prompt);

// A note on stderr where sampling options were given and the temperature leaves them nothing to do.
void note_idle_sampling(const Settings& settings);

// Whether the answer goes to the standard output while it is written.
enum class Show : uint8_t { kNo, kYes };

// Runs steps until the request ends or `cancelled` answers true. The status of a request that
// failed; io where the output can't take the answer.
Result<Answer> run_request(Engine& engine, GenerationRequest request, Show show,
                           const std::function<bool()>& cancelled);

// "prompt 12 tokens at 340 tok/s; 48 tokens at 60 tok/s; cache 1.2 MB, 8.6 bits per element; ended
// by stop". `exact_bits`: the cache's (cache_size.h).
std::string describe(const Answer& answer, const CacheUsage& usage, double exact_bits);

}  // namespace kvant::cli
