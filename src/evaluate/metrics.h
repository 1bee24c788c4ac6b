// Metrics: how far one next-token distribution lies from another, row by row and summed up.
//
// Everything is computed in double from float logits. Two rows with the same bits have a divergence
// of exactly 0. A mean alone hides a damaged tail, so a summary carries the 99th percentile and the
// maximum, and a standard error that takes neighbouring tokens for what they are: correlated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant {

// log Σ exp(logits), stable; −inf logits count as nothing, and so does what is e^−70 of the
// largest. Eight interleaved sums, always in the same order.
double log_sum_exp(std::span<const float> logits);

// −log p(target).
double negative_log_likelihood(std::span<const float> logits, double log_sum, int32_t target);

// Σ p (log p − log q) with p = softmax(base), q = softmax(other), in nats. Not negative but for
// rounding, which is cut off at 0. Where p is below e^−70 the term is 0; where only q is 0 it is
// infinite.
double kl_divergence(std::span<const float> base, double base_log_sum, std::span<const float> other,
                     double other_log_sum);

// Index of the largest logit, the lowest among equals.
int32_t best_token(std::span<const float> logits);

// Of one number per token, in text order.
struct SeriesSummary {
  double mean = 0;
  double p99 = 0;  // nearest rank: the smallest value that at least 99 % of the series don't exceed
  double max = 0;
  // Of the mean, from means of blocks of 64 tokens (a last block shorter than half is left out); 0
  // with fewer than two.
  double standard_error = 0;
};
SeriesSummary summarize(std::span<const double> series);

struct Interval {
  double low = 0, high = 0;
};
// The middle 95 % of the means of 2,000 resamples with replacement (Efron's percentile bootstrap,
// 1979). `groups`: the mean of each stretch of text, all of one length; stretches stand for
// documents, within which tokens are correlated. Both ends are the mean where there are fewer than
// two.
Interval bootstrap_interval(std::span<const double> groups, uint64_t seed = 0);

}  // namespace kvant
