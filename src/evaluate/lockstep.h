// Lock-step evaluation: the same tokens through the same model on several caches at once, scored
// against a BF16 cache.
//
// All runs advance chunk by chunk. Per chunk every run gives its hidden states; then logits are
// made 64 rows at a time for the baseline and for each run and turned into numbers at once, so that
// no more than two blocks of logits exist, whatever the vocabulary. The baseline is a cache of its
// own: a run in bf16 proves that its divergence is exactly 0. Logits of full blocks come from the
// many-row path, of the text's tail from the few-row path, as in forward().
//
// The tokens may be several windows of one length, evaluated one after the other, each from empty
// caches. The figures of all windows are summed up as one series: every token weighs the same.
//
// Position t predicts token t + 1: a window of N tokens scores N − 1 predictions. Every prediction
// is made through the cache by the read rule, so a plain prefill measures the quantized cache;
// `sealed_read_share` says how much of it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "evaluate/metrics.h"
#include "kvant/cache.h"
#include "model/model.h"

namespace kvant {

struct EvaluationOptions {
  int chunk = 512;         // tokens of one step; a multiple of 64 unless the model is invariant
  bool invariant = false;  // the model was loaded so: everything goes the few-row path
  bool baseline = true;    // score against BF16
  int64_t windows = 1;     // of equal length; together they are the tokens
  int decode_steps = 0;    // tokens to time after the last window; 0: none
  // Called now and then with the share that is done.
  std::function<void(double)> progress = {};
};

struct EvaluatedRun {
  std::string name;
  CacheOptions cache;
};

struct EvaluationResult {
  int64_t tokens = 0;  // of all windows
  int64_t scored_tokens = 0;
  double sealed_read_share = 0;
  SeriesSummary nll;
  double perplexity = 0;
  SeriesSummary kld;      // zeros without a baseline
  Interval kld_interval;  // of its mean, over windows
  double top1 = 1;        // share of positions where the best token is the baseline's
  double top1_error = 0;  // standard error of it
  SeriesSummary
      nll_change;    // of −log p(next token) against the baseline: paired, so its error is small
  CacheUsage usage;  // after the last window
  double effective_bits = 0;           // of the pages held, per element of the tokens held
  double prefill_tok_s = 0;            // forward() alone, all windows
  std::optional<double> decode_tok_s;  // forward() and logits, median
  double decode_spread = 0;            // (upper − lower quartile) / median of the times
  uint64_t digest = 0;                 // hash of every logit: equal digests mean equal bits
};

// One result per run, in order. exhausted, invalid_argument (NaN) and the like come from the cache
// or the model, with the run's name in front.
Result<std::vector<EvaluationResult>> evaluate(Model& model, ThreadPool& threads,
                                               std::span<const int32_t> tokens,
                                               std::span<const EvaluatedRun> runs,
                                               const EvaluationOptions& options);

}  // namespace kvant
