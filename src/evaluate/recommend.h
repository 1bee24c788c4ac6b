// Recommendation: which of the compared formats to take, by one documented rule.
//
// A format is good enough if its mean KL divergence, the 99th percentile of it, and its agreement
// on the best token all meet their limits: a fine mean with a damaged tail is refused. Of those
// that are good enough, the one with the fewest effective bits is taken; formats that decode more
// than a tenth slower than BF16 come after all that don't.
#pragma once

#include <span>
#include <string>

namespace kvant {

struct Candidate {
  std::string name;
  bool exact = false;  // f32, f16, bf16: never recommended over another, the answer when nothing
                       // else will do
  double effective_bits = 0;
  double kld = 0, kld_p99 = 0, top1 = 1;
  double decode_tok_s = 0;       // 0: not measured
  double sealed_read_share = 1;  // of the reads that the figures rest on
};

struct QualityLimits {
  double kld = 0.005;
  double kld_p99 = 0.05;
  double top1 = 0.95;
};

// What a format fails, "" if nothing: it is good enough.
std::string shortfall(const Candidate& candidate, const QualityLimits& limits);

struct Recommendation {
  std::string name;    // "bf16" if no quantized format is good enough
  std::string reason;  // one sentence
};

// `baseline_decode_tok_s`: of BF16; 0: not measured, speed isn't considered.
Recommendation recommend(std::span<const Candidate> candidates, const QualityLimits& limits,
                         double baseline_decode_tok_s);

}  // namespace kvant
