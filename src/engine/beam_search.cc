#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace kvant {
namespace {

struct Candidate {
  double sum;
  int beam;
  TokenLogprob token;
};

bool is_finite(std::span<const float> logits) {
  bool some = false;
  for (const float logit : logits) {
    if (std::isnan(logit)) return false;
    some |= std::isfinite(logit);
  }
  return some;
}

}  // namespace

double BeamSearch::score(double sum, size_t tokens) const {
  return sum / std::pow(static_cast<double>(tokens), options_.length_penalty);
}

// Keeps the best.
void BeamSearch::complete(Hypothesis hypothesis) {
  hypothesis.score = score(hypothesis.sum, hypothesis.tokens.size());
  hypotheses_.push_back(std::move(hypothesis));
  std::ranges::stable_sort(hypotheses_, std::greater(), &Hypothesis::score);
  if (hypotheses_.size() > static_cast<size_t>(options_.width)) hypotheses_.pop_back();
}

void BeamSearch::stop() {
  for (Hypothesis& beam : beams_) complete(std::move(beam));
  beams_.clear();
}

Result<std::vector<BeamSearch::Child>> BeamSearch::extend(
    std::span<const std::span<const float>> logits) {
  const auto is_end = [&](int32_t token) {
    return std::ranges::find(options_.ends, token) != options_.ends.end();
  };
  const auto width = static_cast<size_t>(options_.width);
  const size_t length = beams_.front().tokens.size();
  const bool may_end = static_cast<int64_t>(length) >= options_.min_tokens;
  std::vector<Candidate> candidates;
  for (size_t b = 0; b < beams_.size(); ++b) {
    if (!is_finite(logits[b])) return internal_error("logits are NaN or none is finite");
    const int most = 2 * options_.width + static_cast<int>(options_.ends.size());
    for (const TokenLogprob& t : logprobs_of(logits[b], 0, most).top) {
      if (may_end || !is_end(t.token))
        candidates.push_back({beams_[b].sum + t.logprob, static_cast<int>(b), t});
    }
  }
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    return std::tuple(-a.sum, a.beam, a.token.token) < std::tuple(-b.sum, b.beam, b.token.token);
  });
  candidates.resize(std::min(candidates.size(), 2 * width));

  std::vector<Child> children;
  std::vector<Hypothesis> next;
  for (size_t rank = 0; rank < candidates.size() && next.size() < width; ++rank) {
    const Candidate& c = candidates[rank];
    const bool ends = is_end(c.token.token);
    if (ends && rank >= width) continue;
    Hypothesis longer = beams_[static_cast<size_t>(c.beam)];
    longer.tokens.push_back(
        logprobs_of(logits[static_cast<size_t>(c.beam)], c.token.token, options_.top_logprobs));
    longer.sum = c.sum;
    longer.has_ended = ends;
    if (ends) {
      complete(std::move(longer));
      continue;
    }
    next.push_back(std::move(longer));
    children.push_back({c.beam, c.token.token});
  }
  beams_ = std::move(next);
  const bool is_over = hypotheses_.size() == width &&
                       hypotheses_.back().score >= score(beams_.front().sum, length + 1);
  if (is_over) beams_.clear();
  if (!is_over && static_cast<int64_t>(length) + 1 >= options_.max_tokens) stop();
  if (beams_.empty()) children.clear();
  return children;
}

}  // namespace kvant
