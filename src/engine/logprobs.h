// Logprobs: log-probabilities of tokens under the model itself, for clients that score text.
//
// They are those of softmax(logits): before penalties, temperature and cuts, which change what is
// sampled and not what the model believes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant {

struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;  // natural; −infinity where the logit is
};

struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // the best ones, in falling order, the lower id among equals
};

// Of the token that was chosen from a row of logits, and of the `top` best. REQUIRES 0 <= token <
// logits.size() and a finite logit.
TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int top);

}  // namespace kvant
