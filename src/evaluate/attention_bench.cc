#include "evaluate/attention_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "evaluate/bandwidth.h"
#include "kvant/cache.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFillTokens = 512;  // of one step while the cache is filled
// Our answers may differ from double attention on the same rows by what the integer products of 15
// and 16 bits and float sums over thousands of tokens add.
constexpr double kOurBound = 5e-3;

constexpr std::string_view kPeers[] = {"f16", "bf16", "q8_0", "q5_1", "q4_0"};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

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
      : pair_(pair),
        data_(data),
        s_(data.shape),
        out_(static_cast<size_t>(s_.queries) * static_cast<size_t>(s_.heads) *
             static_cast<size_t>(s_.dim)) {
    params_.num_query_heads = s_.heads;
    params_.scale = static_cast<float>(1 / std::sqrt(s_.dim));
  }

  std::string name() const override { return pair_.name(); }
  double bytes() const override {
    return static_cast<double>(cache_->usage().live_bytes) / s_.layers;
  }

  Result<double> check() override {
    const int64_t last = s_.tokens + s_.queries - 1;
    const size_t row = row_floats();
    std::vector<float> k(static_cast<size_t>(last + 1) * row), v(k.size());
    KVANT_TRY(cache_->read(sequence_, s_.layers - 1, 0, last + 1, last, k.data(), v.data()));
    const std::span<const float> answer = last_answer();
    const double own =
        relative_error(answer, data_.attend(k.data(), v.data(), s_.queries - 1, last + 1));
    if (!(own <= kOurBound)) {
      return internal_error(fmt::format(
          "{}: attention is off by {:.2g} of its size from double precision on the same rows, "
          "wanted at most {:g}",
          name(), own, kOurBound));
    }
    return relative_error(answer,
                          data_.attend(data_.k.data(), data_.v.data(), s_.queries - 1, last + 1));
  }

  Result<double> time_once() override {
    KVANT_TRY(begin(s_.queries));
    double seconds = 0;
    for (int layer = 0; layer < s_.layers; ++layer) {
      Result<double> one = layer_step(layer, s_.tokens + s_.queries);
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

  std::span<const float> last_answer() const {
    const size_t size = static_cast<size_t>(s_.heads) * static_cast<size_t>(s_.dim);
    return std::span(out_).last(size);
  }

  Status begin(int count) {
    const StepItem item{sequence_, count};
    return cache_->begin_step({&item, 1});
  }

  Status append(int layer, int64_t first) {
    const size_t at = static_cast<size_t>(first) * row_floats();
    return cache_->append(layer, data_.k.data() + at, data_.v.data() + at);
  }

  // Appends the step's rows to one layer and attends; the seconds of the latter.
  Result<double> layer_step(int layer, int64_t first) {
    KVANT_TRY(append(layer, first));
    const Clock::time_point start = Clock::now();
    KVANT_TRY(cache_->attend(layer, data_.q.data(), params_, out_.data()));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  Status fill(ThreadPool& threads) {
    CacheOptions options;
    CacheLayer layer;
    layer.num_kv_heads = s_.kv_heads;
    layer.key_dim = layer.value_dim = s_.dim;
    layer.formats = pair_;
    options.layers.assign(static_cast<size_t>(s_.layers), layer);
    options.sinks = s_.sinks;
    options.exact_window = s_.exact_window;
    options.rotation_seed = s_.rotation_seed;
    KVANT_ASSIGN(cache_, KvCache::create(options, threads));
    KVANT_ASSIGN(sequence_, cache_->create_sequence());
    for (int first = 0; first < s_.tokens; first += kFillTokens) {
      KVANT_TRY(begin(std::min(kFillTokens, s_.tokens - first)));
      for (int l = 0; l < s_.layers; ++l) KVANT_TRY(append(l, first));
      KVANT_TRY(cache_->end_step());
    }
    // The step whose answer in the last layer check() looks at: out_ holds it from here on.
    KVANT_TRY(begin(s_.queries));
    for (int l = 0; l < s_.layers; ++l) KVANT_TRY(layer_step(l, s_.tokens).status());
    return cache_->end_step();
  }

  const FormatPair pair_;
  const AttentionData& data_;
  const AttentionShape& s_;
  AttentionParams params_;
  std::vector<float> out_;
  std::unique_ptr<KvCache> cache_;
  SequenceId sequence_ = 0;
};

}  // namespace

AttentionData::AttentionData(const AttentionShape& s) : shape(s) {
  const auto dim = static_cast<size_t>(s.dim);
  const size_t rows = static_cast<size_t>(s.tokens) + 2 * static_cast<size_t>(s.queries);
  Rng rng(20);
  k.resize(rows * static_cast<size_t>(s.kv_heads) * dim);
  v.resize(k.size());
  q.resize(static_cast<size_t>(s.queries) * static_cast<size_t>(s.heads) * dim);
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

Result<AttentionReport> bench_attention(const AttentionShape& asked,
                                        std::span<const FormatPair> pairs, bool peers, int repeats,
                                        ThreadPool& threads,
                                        const std::function<void(double)>& progress) {
  AttentionShape shape = asked;
  // After a step that ends a page, that page's exact rows, which check() compares with, are gone.
  if ((shape.tokens + shape.queries) % kPageTokens == 0) ++shape.tokens;
  if (shape.heads % shape.kv_heads != 0) {
    return invalid_argument(
        fmt::format("{} query heads can't share {} KV heads evenly", shape.heads, shape.kv_heads));
  }
  AttentionReport report;
  const AttentionData data(shape);
  std::vector<std::unique_ptr<AttentionSubject>> subjects;
  for (const FormatPair& pair : pairs) {
    KVANT_ASSIGN(auto subject, CacheSubject::create(pair, data, threads));
    subjects.push_back(std::move(subject));
  }
  for (std::string_view type : kPeers) {
    if (!peers) break;
    auto subject = ggml_attention(std::string(type), data, threads.num_threads());
    if (subject.ok()) {
      subjects.push_back(std::move(*subject));
    } else {
      report.notes += (report.notes.empty() ? "" : "; ") + subject.status().message();
    }
  }
  std::vector<double> errors;
  for (const auto& subject : subjects) {
    KVANT_ASSIGN(const double error, subject->check());
    errors.push_back(error);
  }
  BandwidthMeter meter(threads);
  std::vector<std::vector<double>> times(subjects.size());
  std::vector<double> bandwidths;
  for (int round = -1; round < repeats; ++round) {  // the first round warms up
    for (size_t i = 0; i < subjects.size(); ++i) {
      KVANT_ASSIGN(const double seconds, subjects[i]->time_once());
      if (round >= 0) times[i].push_back(seconds);
    }
    if (round >= 0) bandwidths.push_back(meter.measure());
    progress(static_cast<double>(round + 1) / repeats);
  }
  report.bandwidth = median(bandwidths);
  for (size_t i = 0; i < subjects.size(); ++i) {
    std::vector<double>& t = times[i];
    std::sort(t.begin(), t.end());
    const double middle = t[t.size() / 2];
    report.rows.push_back({.name = subjects[i]->name(),
                           .ms = 1e3 * middle,
                           .spread = (t[t.size() * 3 / 4] - t[t.size() / 4]) / middle,
                           .bytes = subjects[i]->bytes(),
                           .bandwidth_share = subjects[i]->bytes() / middle / report.bandwidth,
                           .error = errors[i]});
  }
  return report;
}

}  // namespace kvant
