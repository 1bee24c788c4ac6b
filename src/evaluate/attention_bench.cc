#include "evaluate/attention_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "evaluate/bandwidth.h"
#include "evaluate/stand_in.h"
#include "kvant/cache.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFillTokens = 512;  // of one step while the cache is filled
// Our answers may differ from double attention on the same rows by what the integers of queries and
// probabilities and float sums over thousands of tokens add: little beside what the format itself
// costs.
constexpr double kOurBound = 5e-3;
constexpr double kOurShare = 0.2;  // of the format's own error

constexpr std::string_view kPeers[] = {"f16", "bf16", "q8_0", "q5_1", "q4_0"};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Of all sequences, one after the other: [sequences·queries][kv_heads][dim].
struct StepRows {
  std::vector<float> k, v;
};

// Attention of a KvCache.
class CacheSubject : public AttentionSubject {
 public:
  static Result<std::unique_ptr<AttentionSubject>> create(const FormatPair& pair,
                                                          const AttentionData& data,
                                                          ThreadPool& threads) {
    auto subject = std::make_unique<CacheSubject>(pair, data);
    KVANT_TRY(subject->fill(threads).with_context(pair.name()));
    return std::unique_ptr<AttentionSubject>(std::move(subject));
  }

  CacheSubject(const FormatPair& pair, const AttentionData& data)
      : pair_(pair), data_(data), s_(data.shape), out_(data.q.size()) {
    params_.num_query_heads = s_.heads;
    params_.scale = static_cast<float>(1 / std::sqrt(s_.dim));
  }

  std::string name() const override { return pair_.name(); }
  double bytes() const override {
    return static_cast<double>(cache_->usage().live_bytes) / s_.layers;
  }

  Result<double> check() override {
    double error = 0;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      KVANT_ASSIGN(const double of_sequence, check_sequence(i));
      error = std::max(error, of_sequence);
    }
    return error;
  }

  Result<double> time_once() override {
    KVANT_TRY(begin(s_.queries));
    double seconds = 0;
    for (int layer = 0; layer < s_.layers; ++layer) {
      Result<double> one = layer_step(layer, rows_after_);
      if (!one.ok()) {
        cache_->abort_step();
        return one.status();
      }
      seconds += *one;
    }
    cache_->abort_step();  // the sequence stays as long as it was
    return seconds / s_.layers;
  }

 private:
  size_t row_floats() const {
    return static_cast<size_t>(s_.kv_heads) * static_cast<size_t>(s_.dim);
  }

  // Of the last query of a sequence.
  std::span<const float> last_answer(size_t sequence) const {
    const size_t size = static_cast<size_t>(s_.heads) * static_cast<size_t>(s_.dim);
    return std::span(out_).subspan(((sequence + 1) * static_cast<size_t>(s_.queries) - 1) * size,
                                   size);
  }

  Result<double> check_sequence(size_t i) const {
    const int64_t end = data_.end(i);
    const int row = static_cast<int>(i + 1) * s_.queries - 1;
    std::vector<float> k(static_cast<size_t>(end) * row_floats()), v(k.size());
    KVANT_TRY(cache_->read(sequences_[i], s_.layers - 1, 0, end, end - 1, k.data(), v.data()));
    const std::span<const float> answer = last_answer(i);
    const double own = relative_error(answer, data_.attend(k.data(), v.data(), row, end));
    const double formats =
        relative_error(answer, data_.attend(data_.k.data(), data_.v.data(), row, end));
    const double bound = std::max(kOurBound, kOurShare * formats);
    if (!(own <= bound)) {
      return internal_error(fmt::format(
          "{}: attention is off by {:.2g} of its size from double precision on the same rows, "
          "wanted at most {:g}",
          name(), own, bound));
    }
    return formats;
  }

  Status begin(int count) {
    std::vector<StepItem> batch;
    for (const SequenceId id : sequences_) batch.push_back({id, count});
    return cache_->begin_step(batch);
  }

  // Appends a step's rows, of all sequences, to one layer and attends; the seconds of the latter.
  Result<double> layer_step(int layer, const StepRows& rows) {
    KVANT_TRY(cache_->append(layer, rows.k.data(), rows.v.data()));
    const Clock::time_point start = Clock::now();
    KVANT_TRY(cache_->attend(layer, data_.q.data(), params_, out_.data()));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  // The rows of a step of every sequence, `skipped` steps behind its tokens.
  StepRows rows_of_step(int skipped) const {
    StepRows rows;
    const auto count = static_cast<size_t>(s_.queries) * row_floats();
    for (const int tokens : s_.tokens) {
      const size_t first = static_cast<size_t>(tokens + skipped * s_.queries) * row_floats();
      rows.k.insert(rows.k.end(), &data_.k[first], &data_.k[first] + count);
      rows.v.insert(rows.v.end(), &data_.v[first], &data_.v[first] + count);
    }
    return rows;
  }

  Status fill_sequence(SequenceId id, int tokens) {
    for (int first = 0; first < tokens; first += kFillTokens) {
      const StepItem item{id, std::min(kFillTokens, tokens - first)};
      const size_t at = static_cast<size_t>(first) * row_floats();
      KVANT_TRY(cache_->begin_step({&item, 1}));
      for (int l = 0; l < s_.layers; ++l)
        KVANT_TRY(cache_->append(l, data_.k.data() + at, data_.v.data() + at));
      KVANT_TRY(cache_->end_step());
    }
    return {};
  }

  Status fill(ThreadPool& threads) {
    CacheOptions options;
    CacheLayer layer;
    layer.num_kv_heads = s_.kv_heads;
    layer.key_dim = layer.value_dim = s_.dim;
    layer.formats = pair_;
    options.layers.assign(static_cast<size_t>(s_.layers), stand_in_layer(layer));
    options.sinks = s_.sinks;
    options.exact_window = s_.exact_window;
    options.rotation_seed = s_.rotation_seed;
    KVANT_ASSIGN(cache_, KvCache::create(options, threads));
    for (const int tokens : s_.tokens) {
      KVANT_ASSIGN(const SequenceId id, cache_->create_sequence());
      KVANT_TRY(fill_sequence(id, tokens));
      sequences_.push_back(id);
    }
    // The step whose answer in the last layer check() looks at: out_ holds it from here on.
    const StepRows rows = rows_of_step(0);
    rows_after_ = rows_of_step(1);
    KVANT_TRY(begin(s_.queries));
    for (int l = 0; l < s_.layers; ++l) KVANT_TRY(layer_step(l, rows).status());
    return cache_->end_step();
  }

  const FormatPair pair_;
  const AttentionData& data_;
  const AttentionShape& s_;
  AttentionParams params_;
  std::vector<float> out_;
  std::unique_ptr<KvCache> cache_;
  std::vector<SequenceId> sequences_;
  StepRows rows_after_;  // of the step that is timed
};

// A subject and what was measured of it.
struct Contestant {
  std::unique_ptr<AttentionSubject> subject;
  int threads = 0;
  double error = 0;
  std::vector<double> seconds = {};
};

AttentionTiming timing_of(Contestant& c, double bandwidth) {
  std::vector<double>& t = c.seconds;
  std::sort(t.begin(), t.end());
  const double middle = t[t.size() / 2];
  return {.name = c.subject->name(),
          .threads = c.threads,
          .ms = 1e3 * middle,
          .spread = (t[t.size() * 3 / 4] - t[t.size() / 4]) / middle,
          .bytes = c.subject->bytes(),
          .bandwidth_share = c.subject->bytes() / middle / bandwidth,
          .error = c.error};
}

// Every pair and peer on every pool, filled and checked.
Result<std::vector<Contestant>> contestants(const AttentionRequest& request,
                                            const AttentionData& data,
                                            std::span<ThreadPool* const> pools,
                                            std::string& notes) {
  std::vector<Contestant> out;
  for (ThreadPool* pool : pools) {
    const int threads = pool->num_threads();
    for (const FormatPair& pair : request.pairs) {
      KVANT_ASSIGN(auto subject, CacheSubject::create(pair, data, *pool));
      out.push_back({.subject = std::move(subject), .threads = threads});
    }
    for (const std::string& type : request.peers) {
      auto subject = ggml_attention(type, data, threads);
      if (subject.ok()) {
        out.push_back({.subject = std::move(*subject), .threads = threads});
      } else if (pool == pools.front()) {
        notes += (notes.empty() ? "" : "; ") + subject.status().message();
      }
    }
  }
  for (Contestant& c : out) {
    KVANT_ASSIGN(c.error, c.subject->check());
  }
  return out;
}

}  // namespace

AttentionData::AttentionData(const AttentionShape& s) : shape(s) {
  const auto dim = static_cast<size_t>(s.dim);
  const int longest = *std::max_element(s.tokens.begin(), s.tokens.end());
  const size_t rows = static_cast<size_t>(longest + 2 * s.queries);
  Rng rng(20);
  k.resize(rows * static_cast<size_t>(s.kv_heads) * dim);
  v.resize(k.size());
  q.resize(s.tokens.size() * static_cast<size_t>(s.queries * s.heads) * dim);
  for (std::vector<float>* values : {&k, &v, &q}) {
    for (float& x : *values) x = rng.normal();
  }
}

std::vector<double> AttentionData::attend(const float* keys, const float* values, int row,
                                          int64_t count) const {
  const auto dim = static_cast<size_t>(shape.dim), heads = static_cast<size_t>(shape.heads);
  const size_t stride = static_cast<size_t>(shape.kv_heads) * dim,
               group = heads / static_cast<size_t>(shape.kv_heads);
  std::vector<double> out(heads * dim), p(static_cast<size_t>(count));
  for (size_t h = 0; h < heads; ++h) {
    const float* query = q.data() + (static_cast<size_t>(row) * heads + h) * dim;
    const size_t offset = h / group * dim;
    for (size_t t = 0; t < p.size(); ++t) {
      const float* key = keys + t * stride + offset;
      p[t] = std::inner_product(query, query + dim, key, 0.0) / std::sqrt(static_cast<double>(dim));
    }
    const double top = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - top);
    for (size_t t = 0; t < p.size(); ++t) {
      for (size_t c = 0; c < dim; ++c)
        out[h * dim + c] += p[t] / sum * values[t * stride + offset + c];
    }
  }
  return out;
}

double relative_error(std::span<const float> answer, std::span<const double> exact) {
  double error = 0, size = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += (answer[i] - exact[i]) * (answer[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::sqrt(error / size);
}

std::span<const std::string_view> all_peers() { return kPeers; }

Result<AttentionReport> bench_attention(const AttentionRequest& request,
                                        std::span<ThreadPool* const> pools,
                                        const std::function<void(double)>& progress) {
  AttentionShape shape = request.shape;
  if (shape.heads % shape.kv_heads != 0) {
    return invalid_argument(
        fmt::format("{} query heads can't share {} KV heads evenly", shape.heads, shape.kv_heads));
  }
  if (shape.tokens.empty()) return invalid_argument("a batch of no sequence; wanted one and more");
  // After a step that ends a page, that page's exact rows, which check() compares with, are gone.
  for (int& tokens : shape.tokens) {
    if ((tokens + shape.queries) % kPageTokens == 0) ++tokens;
  }
  AttentionReport report;
  const AttentionData data(shape);
  KVANT_ASSIGN(std::vector<Contestant> all, contestants(request, data, pools, report.notes));
  std::vector<std::unique_ptr<BandwidthMeter>> meters;
  for (ThreadPool* pool : pools) meters.push_back(std::make_unique<BandwidthMeter>(*pool));
  std::vector<std::vector<double>> bandwidths(pools.size());
  for (int round = -1; round < request.repeats; ++round) {  // the first round warms up
    for (Contestant& c : all) {
      KVANT_ASSIGN(const double seconds, c.subject->time_once());
      if (round >= 0) c.seconds.push_back(seconds);
    }
    for (size_t i = 0; i < meters.size() && round >= 0; ++i)
      bandwidths[i].push_back(meters[i]->measure());
    progress(static_cast<double>(round + 1) / request.repeats);
  }
  for (size_t i = 0; i < pools.size(); ++i) {
    const int threads = pools[i]->num_threads();
    const double bandwidth = median(bandwidths[i]);
    report.bandwidths.push_back({.threads = threads, .bytes_per_second = bandwidth});
    for (Contestant& c : all) {
      if (c.threads == threads) report.rows.push_back(timing_of(c, bandwidth));
    }
  }
  return report;
}

}  // namespace kvant
