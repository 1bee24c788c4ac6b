// Sampler: from one row of logits to one token.
//
// The order is that of Transformers: repetition penalty, temperature, top-k, top-p, min-p.
// Deterministic: the same parameters, seed and logits give the same tokens on every machine with
// the same exp(); nothing else of the batch or of the process enters. One sampler belongs to one
// request and keeps that request's random stream.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "kvant/status.h"

namespace kvant {

struct SamplingParams {
  double temperature = 0;                   // 0: greedy, the lowest id among equals
  std::optional<int> top_k = std::nullopt;  // at least 1; nothing: no limit
  double top_p = 1;                         // (0, 1]
  double min_p = 0;  // [0, 1): tokens below min_p times the best probability are dropped
  double repeat_penalty =
      1;  // (0, 10]: logits of tokens already seen are divided (or multiplied, below 0) by it
  uint64_t seed = 0;
};

// invalid_argument naming the field, the value and the range. Refuses NaN.
Status validate(const SamplingParams& params);

class Sampler {
 public:
  // REQUIRES validate(params).ok().
  explicit Sampler(const SamplingParams& params);

  // `history`: the tokens seen so far, prompt and answer. internal if a logit is NaN or none is
  // finite.
  // Ids of `banned` aren't taken.
  Result<int32_t> sample(std::span<const float> logits, std::span<const int32_t> history,
                         std::span<const int32_t> banned = {});

 private:
  struct Candidate {
    double logit;
    int32_t id;
  };

  // Logits after the penalty, −infinity of what is banned.
  Status load(std::span<const float> logits, std::span<const int32_t> history,
              std::span<const int32_t> banned);
  int32_t greedy() const;
  // Keeps the best tokens in falling order at the front of candidates_; returns how many remain.
  size_t keep_best(double top_logit);

  SamplingParams params_;
  Rng rng_;
  std::vector<Candidate> candidates_;  // reused from call to call
  std::vector<int32_t> seen_;
};

}  // namespace kvant
