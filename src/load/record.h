// RequestRecord: what was seen of one request: when it was sent, when each piece of its answer
// came, how it ended. Everything that is reported is computed from these; none is thrown away.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::load {

// How a request ended.
enum class Outcome : uint8_t {
  kSuccess,
  kConnect,     // no connection: refused, reset, out of descriptors
  kTimeout,     // not whole after --timeout
  kStatus,      // an HTTP status other than 200
  kEarlyClose,  // the connection ended before the answer did
  kMalformed,   // no HTTP, no event stream, or an event that isn't what it should be
  kErrorEvent,  // the stream itself said that something went wrong
  kWrongCount,  // more tokens than asked for, or under --ignore-eos fewer
  kCutOff,      // we ended the run before it; neither a success nor a failure
};
std::string_view outcome_name(Outcome outcome);  // "time-out", "early close", …

// The server's own counts. -1: it didn't say.
struct Usage {
  int64_t prompt_tokens = -1;
  int64_t completion_tokens = -1;
  int64_t cached_tokens = -1;
};

// Times are nanoseconds of the run's clock; -1: it never came to that.
struct RequestRecord {
  int64_t index = 0;    // of the level's requests, in the order in which they were begun
  bool counted = true;  // false: a warm-up
  int64_t wanted_prompt_tokens = -1;  // -1: not known
  int64_t max_tokens = 0;
  bool exact_tokens = false;  // all of max_tokens are to come (--ignore-eos)

  int64_t sent_ns = -1;          // before connecting, where a connection had to be made
  int64_t first_ns = -1;         // the first piece of text
  int64_t last_ns = -1;          // the last piece of text
  int64_t ended_ns = -1;         // the end of the answer, or of the attempt
  std::vector<int64_t> gaps_ns;  // between pieces of text that follow one another

  Outcome outcome = Outcome::kCutOff;
  int status = 0;      // HTTP's, 0 before it came
  std::string detail;  // of a failure, for people
  std::optional<Usage> usage;
  std::string text;  // kept only where it will be counted

  bool failed() const { return outcome != Outcome::kSuccess && outcome != Outcome::kCutOff; }
};

}  // namespace kvant::load
