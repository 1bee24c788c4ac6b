#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvant {
namespace {

struct Range {
  const char* field;
  double value;
  double low, high;
  bool low_open;  // low itself isn't allowed
  bool high_open;
};

Status check(const Range& r) {
  const bool above = r.low_open ? r.value > r.low : r.value >= r.low;
  const bool below = r.high_open ? r.value < r.high : r.value <= r.high;
  if (above && below) return {};  // a NaN is neither
  return invalid_argument(fmt::format("{} is {}, wanted a number {} {} {} {}", r.field, r.value,
                                      r.low_open ? "above" : "from", r.low,
                                      r.high_open ? "to below" : "to", r.high));
}

}  // namespace

Status validate(const SamplingParams& p) {
  KVANT_TRY(check({"temperature", p.temperature, 0, 100, false, false}));
  KVANT_TRY(check({"top_p", p.top_p, 0, 1, true, false}));
  KVANT_TRY(check({"min_p", p.min_p, 0, 1, false, true}));
  KVANT_TRY(check({"repeat_penalty", p.repeat_penalty, 0, 10, true, false}));
  if (p.top_k && *p.top_k < 1) {
    return invalid_argument(fmt::format("top_k is {}, wanted at least 1", *p.top_k));
  }
  return {};
}

Sampler::Sampler(const SamplingParams& params) : params_(params), rng_(params.seed) {}

Status Sampler::load(std::span<const float> logits, std::span<const int32_t> history,
                     std::span<const int32_t> banned) {
  candidates_.resize(logits.size());
  bool any_finite = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]))
      return internal_error(fmt::format("the logit of token {} is NaN", i));
    const auto id = static_cast<int32_t>(i);
    const bool is_banned = std::find(banned.begin(), banned.end(), id) != banned.end();
    candidates_[i] = {is_banned ? -std::numeric_limits<double>::infinity() : logits[i], id};
    any_finite |= std::isfinite(candidates_[i].logit);
  }
  if (!any_finite) return internal_error("no logit is finite");
  if (params_.repeat_penalty == 1) return {};
  seen_.assign(history.begin(), history.end());
  std::sort(seen_.begin(), seen_.end());
  seen_.erase(std::unique(seen_.begin(), seen_.end()), seen_.end());
  for (int32_t id : seen_) {
    if (id < 0 || static_cast<size_t>(id) >= candidates_.size()) continue;
    double& logit = candidates_[static_cast<size_t>(id)].logit;
    logit = logit > 0 ? logit / params_.repeat_penalty : logit * params_.repeat_penalty;
  }
  return {};
}

int32_t Sampler::greedy() const {
  return std::max_element(candidates_.begin(), candidates_.end(),
                          [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; })
      ->id;
}

size_t Sampler::keep_best(double top_logit) {
  const auto worse = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
  };
  size_t kept = candidates_.size();
  if (params_.top_k && static_cast<size_t>(*params_.top_k) < kept) {
    kept = static_cast<size_t>(*params_.top_k);
    std::nth_element(candidates_.begin(),
                     candidates_.begin() + static_cast<std::ptrdiff_t>(kept) - 1, candidates_.end(),
                     [&](const Candidate& a, const Candidate& b) { return worse(b, a); });
    candidates_.resize(kept);
  }
  double mass = 0;
  for (Candidate& c : candidates_) {
    c.logit = std::exp((c.logit - top_logit) /
                       params_.temperature);  // from here on a weight, the best one's 1
    mass += c.logit;
  }
  // Top-p takes few tokens as a rule, so a heap gives up the best ones without sorting a whole
  // vocabulary.
  std::make_heap(candidates_.begin(), candidates_.end(), worse);
  auto end = candidates_.end();
  double taken = 0;
  size_t count = 0;
  while (end != candidates_.begin()) {
    std::pop_heap(candidates_.begin(), end, worse);
    --end;
    if (end->logit < params_.min_p) break;
    taken += end->logit;
    ++count;
    if (taken >= params_.top_p * mass) break;
  }
  std::reverse(candidates_.begin(), candidates_.end());  // pop_heap filled the array from its end
  return count;
}

Result<int32_t> Sampler::sample(std::span<const float> logits, std::span<const int32_t> history,
                                std::span<const int32_t> banned) {
  KVANT_TRY(load(logits, history, banned));
  if (params_.temperature == 0) return greedy();
  double top = candidates_[0].logit;
  for (const Candidate& c : candidates_) top = std::max(top, c.logit);
  const bool cuts = params_.top_k || params_.top_p < 1 || params_.min_p > 0;
  size_t count = candidates_.size();
  if (cuts) {
    count = keep_best(top);
  } else {
    for (Candidate& c : candidates_) c.logit = std::exp((c.logit - top) / params_.temperature);
  }
  double mass = 0;
  for (size_t i = 0; i < count; ++i) mass += candidates_[i].logit;
  double left = rng_.uniform() * mass;
  for (size_t i = 0; i < count; ++i) {
    left -= candidates_[i].logit;
    if (left < 0) return candidates_[i].id;
  }
  return greedy();  // rounding left a trace of mass at the end
}

}  // namespace kvant
