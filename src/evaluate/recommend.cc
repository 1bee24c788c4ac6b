#include "evaluate/recommend.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace kvant {
namespace {

constexpr double kSlow = 0.9;  // of BF16's decode speed

// A run that read mostly exact pages says little about a format.
constexpr double kLeastSealedShare = 0.5;

}  // namespace

std::string shortfall(const Candidate& c, const QualityLimits& limits) {
  if (c.sealed_read_share < kLeastSealedShare) {
    return fmt::format(
        "only {:.0f} % of its cache reads came from sealed pages, so a longer --context must "
        "measure it",
        100 * c.sealed_read_share);
  }
  if (!(c.kld <= limits.kld)) return fmt::format("mean KLD {:.2g} above {:g}", c.kld, limits.kld);
  if (!(c.kld_p99 <= limits.kld_p99))
    return fmt::format("P99 KLD {:.2g} above {:g}", c.kld_p99, limits.kld_p99);
  if (!(c.top1 >= limits.top1))
    return fmt::format("top-1 {:.1f} % below {:g} %", 100 * c.top1, 100 * limits.top1);
  return {};
}

Recommendation recommend(std::span<const Candidate> candidates, const QualityLimits& limits,
                         double baseline_decode_tok_s) {
  const auto slow = [&](const Candidate& c) {
    return c.decode_tok_s > 0 && baseline_decode_tok_s > 0 &&
           c.decode_tok_s < kSlow * baseline_decode_tok_s;
  };
  const Candidate* best = nullptr;
  const auto better = [&](const Candidate& a, const Candidate& b) {
    if (slow(a) != slow(b)) return !slow(a);
    return a.effective_bits < b.effective_bits;
  };
  for (const Candidate& c : candidates) {
    if (!c.exact && shortfall(c, limits).empty() && (best == nullptr || better(c, *best)))
      best = &c;
  }
  // The cheapest of all that were passed over, to say what one more step down would have cost.
  const Candidate* cheaper = nullptr;
  for (const Candidate& c : candidates) {
    if (c.exact || &c == best || (best != nullptr && c.effective_bits >= best->effective_bits))
      continue;
    if (cheaper == nullptr || c.effective_bits > cheaper->effective_bits) cheaper = &c;
  }
  std::string next;
  if (cheaper != nullptr) {
    const std::string why = shortfall(*cheaper, limits);
    next = fmt::format("; {} at {:.2f} bits is refused: {}", cheaper->name, cheaper->effective_bits,
                       why.empty() ? "it decodes more than a tenth slower than BF16" : why);
  }
  const auto is_measured = [](const Candidate& c) {
    return !c.exact && c.sealed_read_share >= kLeastSealedShare;
  };
  if (best == nullptr && cheaper == nullptr) {
    return {"bf16", "Take bf16: no quantized format was compared with it."};
  }
  if (best == nullptr && std::none_of(candidates.begin(), candidates.end(), is_measured)) {
    return {"bf16", fmt::format("Take bf16 until a longer --context has measured the others: only "
                                "{:.0f} % of {}'s cache reads came from sealed pages.",
                                100 * cheaper->sealed_read_share, cheaper->name)};
  }
  if (best == nullptr) {
    return {"bf16", fmt::format("Take bf16: no quantized format here meets mean KLD {:g}, P99 KLD "
                                "{:g} and top-1 {:g} %{}.",
                                limits.kld, limits.kld_p99, 100 * limits.top1, next)};
  }
  std::string speed;
  if (best->decode_tok_s > 0 && baseline_decode_tok_s > 0) {
    speed = fmt::format(" and decodes at {:.2f}x BF16's speed",
                        best->decode_tok_s / baseline_decode_tok_s);
  }
  return {best->name, fmt::format("Take {}: the fewest bits ({:.2f} effective) within the limits; "
                                  "mean KLD {:.2g}, P99 {:.2g}, "
                                  "top-1 {:.1f} %{}{}.",
                                  best->name, best->effective_bits, best->kld, best->kld_p99,
                                  100 * best->top1, speed, next)};
}

}  // namespace kvant
