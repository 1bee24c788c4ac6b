#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace kvant::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

const Buckets kFirstToken = {0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80};
const Buckets kBetweenTokens = {0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075,
                                0.1,   0.2,   0.3,  0.5,  1,    2.5};
const Buckets kEndToEnd = {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300};
const Buckets kRelativeErrors = {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01,
                                 0.02, 0.05, 0.1,  0.2,  0.5,  1};

}  // namespace

struct Metrics::Series {
  explicit Series(const std::string& model) : labels{{"model_name", model}} {}

  Gauge& gauge(const char* name, const char* help, prometheus::Labels more = {}) {
    more.insert(labels.begin(), labels.end());
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(more);
  }
  Counter& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  }
  Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     buckets);
  }
  // Raises a counter to a total that somebody else counts.
  static void raise(Counter& counter, int64_t total) {
    const double more = static_cast<double>(total) - counter.Value();
    if (more > 0) counter.Increment(more);
  }

  prometheus::Registry registry;
  prometheus::Labels labels;
  Gauge& running = gauge("kvant:num_requests_running", "Answers whose pages are in the cache");
  Gauge& waiting = gauge("kvant:num_requests_waiting", "Requests that haven't started");
  Gauge& swapped = gauge("kvant:num_requests_swapped", "Answers that had to leave the cache");
  Gauge& usage =
      gauge("kvant:kv_cache_usage_perc", "Share of the cache's memory that sequences hold, 0 to 1");
  Gauge& sealed = gauge("kvant:kv_cache_bytes", "Bytes of pages", {{"pages", "sealed"}});
  Gauge& exact = gauge("kvant:kv_cache_bytes", "Bytes of pages", {{"pages", "exact"}});
  Gauge& cached = gauge("kvant:kv_cache_bytes", "Bytes of pages", {{"pages", "prefix_cache_only"}});
  Gauge& swapped_bytes = gauge("kvant:swapped_bytes", "Memory of answers that are swapped out");
  Counter& queries = counter("kvant:prefix_cache_queries_total",
                             "Tokens of prompts that were looked up in the prefix cache");
  Counter& hits = counter("kvant:prefix_cache_hits_total", "Tokens of prompts that were found");
  Counter& preemptions = counter("kvant:num_preemptions_total",
                                 "Answers that had to leave the cache for want of pages");
  Counter& recomputations =
      counter("kvant:num_recomputations_total",
              "Of those: pages that --swap-memory had no room for, and that were computed again");
  Counter& prompt_tokens = counter("kvant:prompt_tokens_total", "Tokens of prompts");
  Counter& generation_tokens = counter("kvant:generation_tokens_total", "Tokens of answers");
  Histogram& first_token = histogram("kvant:time_to_first_token_seconds",
                                     "From a request to its first token", kFirstToken);
  Histogram& between = histogram("kvant:inter_token_latency_seconds",
                                 "Between two tokens of an answer", kBetweenTokens);
  Histogram& end_to_end =
      histogram("kvant:e2e_request_latency_seconds", "From a request to its end", kEndToEnd);
  Family<Histogram>& errors =
      prometheus::BuildHistogram()
          .Name("kvant:attention_error")
          .Help("Relative error of attention on pages as they are sealed, a layer at a time")
          .Register(registry);
  Counter& error_seconds = counter("kvant:attention_error_seconds_total",
                                   "Time that measuring kvant:attention_error took");
  Family<Counter>& done = prometheus::BuildCounter()
                              .Name("kvant:request_success_total")
                              .Help("Requests that ended, by reason")
                              .Register(registry);
  Family<Counter>& responses = prometheus::BuildCounter()
                                   .Name("kvant:http_responses_total")
                                   .Help("Responses, by code")
                                   .Register(registry);
  Family<Counter>& dropped = prometheus::BuildCounter()
                                 .Name("kvant:clients_dropped_total")
                                 .Help("Clients that didn't take their answer: gone, or too slow")
                                 .Register(registry);
};

Metrics::Metrics(const std::string& model) : series_(std::make_unique<Series>(model)) {}
Metrics::~Metrics() = default;

void Metrics::time_to_first_token(double seconds) { series_->first_token.Observe(seconds); }
void Metrics::inter_token_latency(double seconds) { series_->between.Observe(seconds); }

void Metrics::request_done(std::string_view reason, double seconds, const RequestStats& stats) {
  prometheus::Labels labels = series_->labels;
  labels["finished_reason"] = std::string(reason);
  series_->done.Add(labels).Increment();
  series_->end_to_end.Observe(seconds);
  series_->prompt_tokens.Increment(static_cast<double>(stats.prompt_tokens));
  series_->generation_tokens.Increment(static_cast<double>(stats.new_tokens));
}

void Metrics::http_response(int code) {
  series_->responses.Add({{"code", std::to_string(code)}}).Increment();
}

void Metrics::sealing_error(const std::string& format, const SealingError& error) {
  prometheus::Labels labels = series_->labels;
  labels["format"] = format;
  labels["of"] = "scores";
  series_->errors.Add(labels, kRelativeErrors).Observe(error.error.scores);
  labels["of"] = "outputs";
  series_->errors.Add(labels, kRelativeErrors).Observe(error.error.outputs);
  series_->error_seconds.Increment(error.seconds);
}

void Metrics::client_dropped(std::string_view reason) {
  series_->dropped.Add({{"reason", std::string(reason)}}).Increment();
}

void Metrics::set(const EngineLoad& load, const CacheUsage& usage, uint64_t max_bytes) {
  Series& s = *series_;
  s.running.Set(static_cast<double>(load.running));
  s.waiting.Set(static_cast<double>(load.waiting));
  s.swapped.Set(static_cast<double>(load.preempted));
  const auto held = static_cast<double>(usage.live_bytes - usage.cached_bytes);
  if (max_bytes > 0) s.usage.Set(held / static_cast<double>(max_bytes));
  s.sealed.Set(static_cast<double>(usage.sealed_bytes));
  s.exact.Set(static_cast<double>(usage.exact_bytes));
  s.swapped_bytes.Set(static_cast<double>(usage.swapped_bytes));
  s.cached.Set(static_cast<double>(usage.cached_bytes));
  Series::raise(s.queries, load.prefix_queries);
  Series::raise(s.hits, load.prefix_hits);
  Series::raise(s.preemptions, load.preemptions);
  Series::raise(s.recomputations, load.recomputations);
}

std::string Metrics::text() const {
  return prometheus::TextSerializer().Serialize(series_->registry.Collect());
}

}  // namespace kvant::server
