// Engine: many generation requests on one model and one cache, advanced one batch at a time.
//
// step() runs one batch: one row for every answer that is being decoded, and in what they leave of
// `chunk` tokens the prompts of requests that aren't there yet, in order of submission. A request's
// tokens don't depend on the batch, nor on what the prefix index held, nor on whether it had to
// wait: its rows are computed as if alone, and its random numbers are its own. The engine has no
// thread and no clock that decides anything; a server's scheduler calls submit(), cancel() and
// step() from one thread.
//
// **Prefixes.** Where the cache keeps them (CacheOptions::prefix_cache) a request starts from the
// longest run of its prompt's pages that is there, and publishes its own.
// **Out of pages.** What only the prefix index holds goes first; then idle sessions and the newest
// answers are swapped out, whole, and come back in the order of submission as soon as there is
// room. Where max_swap_bytes are out, an answer's pages are dropped in place of that, and computed
// again when it comes back, every row the way that it was: the bits are the same. Nothing that was
// accepted fails for want of memory: what could never fit is refused by submit(), and an answer
// that fills all of the pool ends with kLength.
//
// A *session* keeps its sequence after a request ends. The next request of the session gives the
// whole text again; what the cache already holds of it (the common prefix) isn't computed a second
// time, the rest is dropped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/logprobs.h"
#include "engine/sampler.h"
#include "kvant/cache.h"
#include "model/model.h"

namespace kvant {

using RequestId = uint64_t;
using SessionId = uint64_t;  // 0: none

struct EngineOptions {
  int chunk = 512;          // tokens of one step; not a multiple of 64 only with an invariant model
  int64_t context = 0;      // tokens a sequence may hold; 0: what the model allows
  int64_t max_running = 0;  // answers in a batch; 0: as many as fit
  // Where sequences are swapped out to; empty: to memory.
  std::string swap_folder = {};
  // Of memory, for answers that are swapped out; nothing: no limit. A session's pages count, but
  // always find a place: they can't be computed again.
  std::optional<uint64_t> max_swap_bytes = std::nullopt;
};

struct GenerationRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  // 0 only with prompt_logprobs: the prompt is read and nothing else.
  int64_t max_tokens = 128;
  // Before so many tokens the answer ends neither by an end-of-generation token, which isn't
  // sampled then, nor by a stop string that is whole before.
  int64_t min_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_end = false;  // goes on after an end-of-generation token
  SessionId session = 0;
  // Answers, which share the prompt's pages. Answer i is the one that a request with the seed
  // sampling.seed + i gets. A session takes one.
  int num_samples = 1;
  std::string cache_salt = {};   // a tenant: pages are shared among equal salts only
  bool use_prefix_cache = true;  // false: neither looks pages up nor publishes them
  // Log-probabilities of every token of the answers, and of so many best ones beside it.
  std::optional<int> logprobs = std::nullopt;
  // Likewise of the prompt's tokens from the second on. All of it is computed: nothing is looked
  // up. Not in a session.
  std::optional<int> prompt_logprobs = std::nullopt;
  // Beam search (engine/beam_search.h) in place of samples: num_samples is its width, and answer i
  // is the hypothesis of rank i. All of them come at the end. Wants temperature 0; no stop strings,
  // repetition penalty or session.
  struct Beams {
    double length_penalty = 1;
  };
  std::optional<Beams> beams = std::nullopt;
};

enum class FinishReason : uint8_t {
  kRunning,
  kStop,    // an end-of-generation token or a stop string
  kLength,  // max_tokens, or the context is full
  kFailed,  // `status` says why
};
std::string_view finish_reason_name(FinishReason reason);

// What one step did for one answer of a request. The request is done when each of its answers has
// had an event with a reason to finish.
struct GenerationEvent {
  RequestId request = 0;
  int sample = 0;
  std::optional<int32_t> token;  // nothing when the answer failed
  std::string text;              // whole characters, nothing that may become a stop string
  FinishReason finish = FinishReason::kRunning;
  Status status;
  std::optional<TokenLogprobs> logprobs = {};  // of `token`
  // With the first event of sample 0: of the prompt's tokens from the second on.
  std::vector<TokenLogprobs> prompt_logprobs = {};
};

struct RequestStats {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;   // of the prompt, found in the session's cache or the prefix index
  int64_t new_tokens = 0;      // of all samples
  int64_t preemptions = 0;     // times that one of its answers had to leave the cache
  double queue_seconds = 0;    // from submit() to the step that started it
  double prefill_seconds = 0;  // of the steps until the first token
  double decode_seconds = 0;   // of the steps after it
};

// What the engine is at, and what it has done.
struct EngineLoad {
  int64_t running = 0;    // answers whose pages are in the cache
  int64_t waiting = 0;    // requests that haven't started
  int64_t preempted = 0;  // answers that had to leave it
  // Since the engine began; of prompts, in tokens: looked up in the prefix index, and found there.
  int64_t prefix_queries = 0;
  int64_t prefix_hits = 0;
  int64_t preemptions = 0;
  int64_t recomputations = 0;  // of those: pages were dropped
  // Swaps that EngineOptions::swap_folder took no file for, and why the last one didn't: they went
  // to memory.
  int64_t refused_files = 0;
  std::string refused_why = {};
};

class Scheduler;
struct RequestState;
struct Sample;
struct Slice;

class Engine {
 public:
  // Both outlive the engine. REQUIRES options.chunk > 0.
  Engine(Model& model, KvCache& cache, const EngineOptions& options);
  ~Engine();  // releases every sequence it made
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Tokens a sequence may hold: what the model allows, the options, and the pool's pages.
  int64_t context() const { return context_; }
  EngineLoad load() const;

  // Checks the request and queues it. invalid_argument names the field; a prompt longer than the
  // context is refused with both numbers, and exhausted says so with the bytes too, where it is the
  // pool that is too small. A request that only fills the context later ends with kLength.
  Result<RequestId> submit(GenerationRequest request);
  // Forgets a request that hasn't finished and frees its pages (a session keeps its own).
  Status cancel(RequestId id);

  SessionId open_session();
  Status close_session(SessionId id);

  bool idle() const;
  // Runs one batch and returns what happened, by request in order of submission. A request that
  // can't be computed ends with kFailed and leaves the others alone. Does nothing when idle.
  std::vector<GenerationEvent> step();

  // Of a request that has finished, until it is asked for once.
  std::optional<RequestStats> take_stats(RequestId id);

 private:
  Status check(const GenerationRequest& request) const;
  Status check_beams(const GenerationRequest& request) const;
  std::vector<Slice> run_batch(std::vector<GenerationEvent>& events);
  std::vector<Slice> run_each(std::span<const Slice> slices, std::vector<GenerationEvent>& events);
  Status run(std::span<const Slice> slices, float* hidden);
  void sample_all(std::span<const Slice> slices, std::vector<GenerationEvent>& events);
  Status score_prompt(const Slice& slice, const float* hidden);
  void extend_beams(RequestState& r, std::span<const std::span<const float>> logits,
                    std::vector<GenerationEvent>& events);
  void tell_hypotheses(RequestState& r, std::vector<GenerationEvent>& events);
  GenerationEvent next_token(Sample& s, std::span<const float> logits);
  void fail(Sample& s, const Status& status, std::vector<GenerationEvent>& events);
  void finish(const GenerationEvent& event);

  Model& model_;
  KvCache& cache_;
  EngineOptions options_;
  int64_t context_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestId, RequestStats> finished_;
  std::vector<float> hidden_, rows_, logits_, prompt_logits_;  // scratch of a step
};

}  // namespace kvant
