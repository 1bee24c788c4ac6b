#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvant {

TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int top) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double mass = 0;
  for (const float logit : logits) mass += std::exp(static_cast<double>(logit) - best);
  const double log_sum = best + std::log(mass);
  const auto of = [&](int32_t id) {
    return TokenLogprob{id, static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum};
  };
  TokenLogprobs out{of(token), {}};
  if (top <= 0) return out;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min(static_cast<std::ptrdiff_t>(top), std::ssize(ids));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (std::ptrdiff_t i = 0; i < count; ++i) out.top.push_back(of(ids[static_cast<size_t>(i)]));
  return out;
}

}  // namespace kvant
