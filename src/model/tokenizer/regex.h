// Regex: a pattern of a tokenizer.json, compiled by PCRE2 with its JIT.
//
// The reference runs these patterns in Oniguruma. Where the two differ over the classes \s \w \d \h
// and their complements, the pattern is rewritten to what Oniguruma means. Immutable; any thread
// may search.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::tokenizer {

struct Match {
  size_t begin;
  size_t end;
};

class Regex {
 public:
  static Result<std::unique_ptr<Regex>> compile(std::string_view pattern);
  // A pattern that matches exactly `text`.
  static Result<std::unique_ptr<Regex>> literal(std::string_view text);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // The leftmost match that starts at or after `from`. Nothing too if the search exceeds PCRE2's
  // limits, which no pattern of a known family does. REQUIRES valid UTF-8, `from` on a character.
  std::optional<Match> search(std::string_view text, size_t from) const;
  // No match is shorter.
  size_t min_bytes() const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
  std::string literal_;  // not empty: search for this text, no regex
};

// The pattern with Oniguruma's classes spelled out.
std::string oniguruma_to_pcre2(std::string_view pattern);

}  // namespace kvant::tokenizer
