#include "evaluate/lockstep.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "evaluate/read_share.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr int64_t kRows = kPageTokens;  // rows of one tile of logits

// One cache with one sequence in it, and what was measured on it.
struct Run {
  std::string name;
  CacheOptions options;
  std::unique_ptr<KvCache> cache;
  SequenceId sequence = 0;
  std::vector<float> hidden;  // of the current chunk
  double prefill_seconds = 0;
  std::vector<double> decode_seconds;
  std::vector<double> nll, kld, agrees;  // one per scored token
  uint64_t digest = 0;
};

class Evaluation {
 public:
  Evaluation(Model& model, ThreadPool& threads, std::span<const int32_t> tokens,
             const EvaluationOptions& options)
      : model_(model),
        threads_(threads),
        all_tokens_(tokens),
        options_(options),
        window_(tokens.size() / static_cast<size_t>(options.windows)),
        vocab_(static_cast<size_t>(model.info().vocab_size)),
        hidden_size_(static_cast<size_t>(model.info().hidden_size)) {}

  Status open(std::span<const EvaluatedRun> runs) {
    if (options_.baseline) {
      CacheOptions exact = runs.front().cache;
      for (CacheLayer& layer : exact.layers) layer.formats = {"bf16", "bf16"};
      KVANT_TRY(add("baseline", exact));
    }
    for (const EvaluatedRun& run : runs) KVANT_TRY(add(run.name, run.cache));
    return {};
  }

  Status score() {
    for (size_t first = 0; first < all_tokens_.size(); first += window_) {
      tokens_ = all_tokens_.subspan(first, window_);
      if (first > 0) KVANT_TRY(empty_caches());
      KVANT_TRY(score_window());
      windows_done_ += 1;
    }
    for (Run& run : runs_) usage_.push_back(run.cache->usage());
    return {};
  }

  Status score_window() {
    const auto n = static_cast<int64_t>(tokens_.size());
    for (int64_t first = 0; first < n; first += options_.chunk, ++num_chunks_) {
      const int64_t count = std::min<int64_t>(options_.chunk, n - first);
      for (size_t i = 0; i < runs_.size(); ++i) {
        // The order turns from chunk to chunk, so that no format always runs on a machine that
        // another has warmed.
        Run& run = runs_[(i + num_chunks_) % runs_.size()];
        KVANT_TRY(forward(run, first, count).with_context(run.name));
        report(first +
               count * static_cast<int64_t>(i + 1) / static_cast<int64_t>(2 * runs_.size()));
      }
      for (int64_t row = 0; row < count; row += kRows) {
        const int64_t rows = std::min(kRows, count - row);
        KVANT_TRY(score_tile(first, row, rows));
        report(first + count / 2 + row / 2);
      }
    }
    return {};
  }

  // Feeds the first run's greedy tokens to every run, one step at a time, in turns.
  Status time_decode() {
    int32_t token = last_best_;
    std::vector<float> logits(vocab_);
    for (int step = 0; step < options_.decode_steps; ++step) {
      int32_t next = token;
      for (size_t i = 0; i < runs_.size(); ++i) {
        const size_t which = (i + static_cast<size_t>(step)) % runs_.size();
        Run& run = runs_[which];
        const Clock::time_point begin = Clock::now();
        const ForwardItem item{run.sequence, {&token, 1}};
        KVANT_TRY(model_.forward(*run.cache, {&item, 1}, run.hidden.data()).with_context(run.name));
        KVANT_TRY(model_.logits(run.hidden.data(), 1, Model::Dense::kRow, logits.data())
                      .with_context(run.name));
        run.decode_seconds.push_back(seconds_since(begin));
        if (which == 0) next = best_token(logits);
      }
      token = next;
    }
    return {};
  }

  Result<std::vector<EvaluationResult>> results() {
    std::vector<EvaluationResult> out;
    for (size_t i = options_.baseline ? 1 : 0; i < runs_.size(); ++i) {
      KVANT_ASSIGN(EvaluationResult result, result_of(runs_[i], usage_[i]));
      out.push_back(std::move(result));
    }
    return out;
  }

 private:
  Status add(const std::string& name, const CacheOptions& cache_options) {
    Run run;
    run.name = name;
    run.options = cache_options;
    auto cache = KvCache::create(cache_options, threads_);
    if (!cache.ok()) return cache.status().with_context(name);
    run.cache = std::move(*cache);
    KVANT_ASSIGN(run.sequence, run.cache->create_sequence());
    run.hidden.resize(std::min(static_cast<size_t>(options_.chunk), window_) * hidden_size_);
    runs_.push_back(std::move(run));
    return {};
  }

  Status empty_caches() {
    for (Run& run : runs_) {
      KVANT_TRY(run.cache->release_sequence(run.sequence));
      KVANT_ASSIGN(run.sequence, run.cache->create_sequence());
    }
    return {};
  }

  Status forward(Run& run, int64_t first, int64_t count) {
    const ForwardItem item{run.sequence,
                           tokens_.subspan(static_cast<size_t>(first), static_cast<size_t>(count))};
    const Clock::time_point begin = Clock::now();
    KVANT_TRY(model_.forward(*run.cache, {&item, 1}, run.hidden.data()));
    run.prefill_seconds += seconds_since(begin);
    return {};
  }

  // Rows [row, row + rows) of the chunk that begins at token `first`.
  Status score_tile(int64_t first, int64_t row, int64_t rows) {
    const bool block = rows == kRows && !options_.invariant;
    const Model::Dense dense = block ? Model::Dense::kBlock : Model::Dense::kRow;
    const int64_t position = first + row;
    const auto n = static_cast<int64_t>(tokens_.size());
    const auto scored = static_cast<size_t>(std::min(rows, n - 1 - position));
    for (size_t i = 0; i < runs_.size(); ++i) {
      Run& run = runs_[i];
      std::vector<float>& logits = i == 0 ? base_logits_ : run_logits_;
      logits.resize(static_cast<size_t>(rows) * vocab_);
      const float* hidden = run.hidden.data() + static_cast<size_t>(row) * hidden_size_;
      KVANT_TRY(model_.logits(hidden, static_cast<int>(rows), dense, logits.data())
                    .with_context(run.name));
      score_rows(run, logits, static_cast<size_t>(position), scored);
      for (int64_t r = 0; r < rows; ++r) {
        // One hash per row, chained: it doesn't depend on how the rows were cut into tiles.
        const std::span<const float> one = row_of(logits, static_cast<size_t>(r));
        run.digest = XXH3_64bits_withSeed(one.data(), one.size_bytes(), run.digest);
      }
      if (i == 0) last_best_ = best_token(row_of(logits, static_cast<size_t>(rows - 1)));
    }
    return {};
  }

  std::span<const float> row_of(const std::vector<float>& logits, size_t row) const {
    return std::span(logits).subspan(row * vocab_, vocab_);
  }

  void score_rows(Run& run, const std::vector<float>& logits, size_t position, size_t scored) {
    const bool is_base = &run == &runs_.front();
    const size_t done = run.nll.size();
    run.nll.resize(done + scored);
    run.kld.resize(done + scored);
    run.agrees.resize(done + scored);
    if (is_base) base_log_sums_.resize(scored);
    threads_.run(scored, [&](size_t r, int) {
      const std::span<const float> row = row_of(logits, r);
      const double log_sum = log_sum_exp(row);
      run.nll[done + r] = negative_log_likelihood(row, log_sum, tokens_[position + r + 1]);
      if (is_base) {
        base_log_sums_[r] = log_sum;
        run.agrees[done + r] = 1;
      } else if (options_.baseline) {
        const std::span<const float> base = row_of(base_logits_, r);
        run.kld[done + r] = kl_divergence(base, base_log_sums_[r], row, log_sum);
        run.agrees[done + r] = best_token(base) == best_token(row) ? 1 : 0;
      }
    });
  }

  Result<EvaluationResult> result_of(Run& run, const CacheUsage& usage) {
    EvaluationResult r;
    r.tokens = static_cast<int64_t>(all_tokens_.size());
    r.scored_tokens = static_cast<int64_t>(run.nll.size());
    KVANT_ASSIGN(const ReadShare share, count_reads(run.options, 0, static_cast<int64_t>(window_)));
    r.sealed_read_share = share.share();
    r.nll = summarize(run.nll);
    r.perplexity = std::exp(r.nll.mean);
    if (!std::isfinite(r.nll.mean)) {
      return corrupt(
          fmt::format("{}: the model's logits aren't finite on this text", model_.info().path));
    }
    if (options_.baseline) {
      r.kld = summarize(run.kld);
      r.kld_interval = bootstrap_interval(window_means(run.kld));
      const SeriesSummary agreement = summarize(run.agrees);
      r.top1 = agreement.mean;
      r.top1_error = agreement.standard_error;
      std::vector<double> change(run.nll);
      for (size_t i = 0; i < change.size(); ++i) change[i] -= runs_.front().nll[i];
      r.nll_change = summarize(change);
    }
    r.usage = usage;
    if (usage.ideal_bytes > 0) {
      r.effective_bits =
          16 * static_cast<double>(usage.live_bytes) / static_cast<double>(usage.ideal_bytes);
    }
    r.prefill_tok_s = static_cast<double>(r.tokens) / run.prefill_seconds;
    if (!run.decode_seconds.empty()) {
      std::sort(run.decode_seconds.begin(), run.decode_seconds.end());
      const std::vector<double>& s = run.decode_seconds;
      const double median = s[s.size() / 2];
      r.decode_tok_s = 1 / median;
      r.decode_spread = (s[s.size() * 3 / 4] - s[s.size() / 4]) / median;
    }
    r.digest = run.digest;
    return r;
  }

  // Of a number per scored token, as many in every window.
  std::vector<double> window_means(std::span<const double> series) const {
    const auto windows = static_cast<size_t>(options_.windows);
    std::vector<double> means;
    const size_t count = series.size() / windows;
    for (size_t w = 0; w < windows; ++w) {
      const std::span<const double> window = series.subspan(w * count, count);
      const double sum = std::accumulate(window.begin(), window.end(), 0.0);
      means.push_back(sum / static_cast<double>(count));
    }
    return means;
  }

  // `done`: tokens of the current window.
  void report(int64_t done) const {
    if (!options_.progress) return;
    const double windows = windows_done_ + static_cast<double>(done) / static_cast<double>(window_);
    options_.progress(windows / static_cast<double>(options_.windows));
  }

  Model& model_;
  ThreadPool& threads_;
  std::span<const int32_t> all_tokens_, tokens_;  // tokens_: of the current window
  const EvaluationOptions& options_;
  const size_t window_, vocab_, hidden_size_;
  double windows_done_ = 0;
  size_t num_chunks_ = 0;
  std::vector<Run> runs_;  // the baseline first, if there is one
  std::vector<CacheUsage> usage_;
  std::vector<float> base_logits_, run_logits_;  // [64][vocab]
  std::vector<double> base_log_sums_;
  int32_t last_best_ = 0;
};

}  // namespace

Result<std::vector<EvaluationResult>> evaluate(Model& model, ThreadPool& threads,
                                               std::span<const int32_t> tokens,
                                               std::span<const EvaluatedRun> runs,
                                               const EvaluationOptions& options) {
  if (runs.empty()) return invalid_argument("no format to evaluate was given");
  const auto count = static_cast<int64_t>(tokens.size());
  if (options.windows < 1 || count % options.windows != 0 || count / options.windows < 2) {
    return invalid_argument(fmt::format(
        "{} tokens can't be cut into {} equal windows of at least 2", count, options.windows));
  }
  if (options.chunk < 1 || (options.chunk % kPageTokens != 0 && !options.invariant)) {
    return invalid_argument(fmt::format("chunk is {}, wanted a multiple of 64", options.chunk));
  }
  Evaluation evaluation(model, threads, tokens, options);
  KVANT_TRY(evaluation.open(runs));
  KVANT_TRY(evaluation.score());
  KVANT_TRY(evaluation.time_decode());
  return evaluation.results();
}

}  // namespace kvant
