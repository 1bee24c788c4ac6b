// Beam search: which continuations of a prompt are kept, from the model's log-probabilities alone.
//
// As in Transformers (early_stopping = false): of the 2 · width best continuations of all beams, an
// end-of-generation token among the first `width` completes a hypothesis, and the best `width` of
// the others go on. A hypothesis of n tokens, its end among them, scores
// (sum of their log-probabilities) / n^length_penalty. The search is over when there are `width`
// hypotheses and none of the beams would score better than the worst of them if it ended now.
// Deterministic: among equals the earlier beam, then the lower token. Of sequences and pages it
// knows nothing; the scheduler moves them as `Child` says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/logprobs.h"
#include "kvant/status.h"

namespace kvant {

class BeamSearch {
 public:
  struct Options {
    int width = 1;
    double length_penalty = 1;
    int top_logprobs = 0;  // beside each token
    int64_t min_tokens = 0;
    int64_t max_tokens = 1;
    std::vector<int32_t> ends = {};  // tokens that end a hypothesis
  };
  struct Hypothesis {
    std::vector<TokenLogprobs> tokens;
    double sum = 0;  // of their log-probabilities
    double score = 0;
    bool has_ended = false;  // by an end-of-generation token, its last
  };
  // What a beam goes on from.
  struct Child {
    int parent = 0;
    int32_t token = 0;
  };

  // REQUIRES a vocabulary of at least 2 · width tokens and those that end.
  explicit BeamSearch(Options options) : options_(std::move(options)) {}

  // `logits`: a row of each beam [vocab_size]; of the prompt alone at first. The beams from now on,
  // `width` of them; none when it is over. internal if a logit is NaN or none is finite.
  Result<std::vector<Child>> extend(std::span<const std::span<const float>> logits);
  // There is no more room: what the beams have is what they end with.
  void stop();
  // After the end, the best first: `width` of them.
  const std::vector<Hypothesis>& hypotheses() const { return hypotheses_; }

 private:
  void complete(Hypothesis hypothesis);
  double score(double sum, size_t tokens) const;

  Options options_;
  std::vector<Hypothesis> beams_ = {{}};
  std::vector<Hypothesis> hypotheses_;
};

}  // namespace kvant
