// Engine: many generation requests on one model and one cache, advanced one batch at a time.
//
// step() runs one batch: one row for every request that is decoding, and up to `chunk` prompt
// tokens of those that aren't there yet, in order of submission. A request's tokens don't depend on
// the batch: its rows are computed as if alone, and its random numbers are its own. The engine has
// no thread and no clock that decides anything; a server's scheduler calls submit(), cancel() and
// step() from one thread.
//
// A *session* keeps its sequence after a request ends. The next request of the session gives the
// whole text again; what the cache already holds of it (the common prefix) isn't computed a second
// time, the rest is dropped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "engine/stop_strings.h"
#include "kvant/cache.h"
#include "model/model.h"

namespace kvant {

using RequestId = uint64_t;
using SessionId = uint64_t;  // 0: none

struct EngineOptions {
  int chunk = 512;  // prompt tokens of one step; not a multiple of 64 only with an invariant model
  int64_t context = 0;  // tokens a sequence may hold; 0: what the model allows
};

struct GenerationRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 128;
  std::vector<std::string> stop;
  bool ignore_end = false;  // goes on after an end-of-generation token
  SessionId session = 0;
};

enum class FinishReason : uint8_t {
  kRunning,
  kStop,    // an end-of-generation token or a stop string
  kLength,  // max_tokens, or the context is full
  kFailed,  // `status` says why
};
std::string_view finish_reason_name(FinishReason reason);

// What one step did for one request.
struct GenerationEvent {
  RequestId request = 0;
  std::optional<int32_t> token;  // nothing when the request failed
  std::string text;              // whole characters, nothing that may become a stop string
  FinishReason finish = FinishReason::kRunning;
  Status status;
};

struct RequestStats {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the session's cache
  int64_t new_tokens = 0;
  double prefill_seconds = 0;  // of the steps until the first token
  double decode_seconds = 0;   // of the steps after it
};

class Engine {
 public:
  // Both outlive the engine. REQUIRES options.chunk > 0.
  Engine(Model& model, KvCache& cache, const EngineOptions& options);
  ~Engine();  // releases every sequence it made
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Tokens a sequence may hold.
  int64_t context() const { return context_; }

  // Checks the request and queues it. invalid_argument names the field; a prompt longer than the
  // context is refused with both numbers. A request that only fills the context later ends with
  // kLength.
  Result<RequestId> submit(GenerationRequest request);
  // Forgets a request that hasn't finished and frees its pages (a session keeps its own).
  Status cancel(RequestId id);

  SessionId open_session();
  Status close_session(SessionId id);

  bool idle() const { return requests_.empty(); }
  // Runs one batch and returns what happened, by request in order of submission. A request that
  // can't be computed ends with kFailed and leaves the others alone. Does nothing when idle.
  std::vector<GenerationEvent> step();

  // Of a request that has finished, until it is asked for once.
  std::optional<RequestStats> take_stats(RequestId id);

 private:
  struct Session {
    SequenceId sequence = 0;
    bool exists = false;          // `sequence` is one
    bool busy = false;            // a request uses it
    std::vector<int32_t> cached;  // the tokens that the cache holds
  };
  struct Running;
  struct Slice;  // a request's part of one batch

  Status start(Running& r);
  std::vector<Slice> plan_batch();
  Status run(std::span<const Slice> slices, float* hidden);
  void sample_all(std::span<const Slice> slices, const float* hidden,
                  std::vector<GenerationEvent>& events);
  GenerationEvent advance(Running& r, std::span<const float> logits);
  void fail(Running& r, Status status, std::vector<GenerationEvent>& events);
  void finish(RequestId id);

  Model& model_;
  KvCache& cache_;
  EngineOptions options_;
  int64_t context_;
  uint64_t next_id_ = 1;
  std::map<RequestId, std::unique_ptr<Running>> requests_;  // in order of submission
  std::map<SessionId, Session> sessions_;
  std::map<RequestId, RequestStats> finished_;
  std::vector<float> hidden_, rows_, logits_;  // scratch of a step
};

}  // namespace kvant
