// Metrics: what the server counts, in Prometheus' text format. Names follow vLLM's with the prefix
// `kvant:`. Any thread may count.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "evaluate/sealing_probe.h"
#include "kvant/cache.h"

namespace kvant::server {

class Metrics {
 public:
  explicit Metrics(const std::string& model);
  ~Metrics();

  void time_to_first_token(double seconds);
  void inter_token_latency(double seconds);
  void request_done(std::string_view reason, double seconds, const RequestStats& stats);
  void http_response(int code);
  // Of a page that was sealed in one layer, whose formats are `format` (evaluate/sealing_probe.h).
  void sealing_error(const std::string& format, const SealingError& error);
  // A client that went away before its answer was written, or that read it too slowly.
  void client_dropped(std::string_view reason);
  // What the engine and the cache are at.
  void set(const EngineLoad& load, const CacheUsage& usage, uint64_t max_bytes);

  std::string text() const;

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace kvant::server
