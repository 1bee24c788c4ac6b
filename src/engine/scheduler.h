// Scheduler: which sequences are in the cache, and what each does in the next step.
//
// It owns requests, their samples' sequences and the sessions. In the cache are the oldest requests
// that fit: what waits starts in the order of submission, and whoever was swapped out comes back
// before anything else starts. A step takes one token of every sample that is decoding, then, with
// what is left of the budget, prompts in order; a prompt's part ends on a page, so that every full
// block is computed as one. Pages that were dropped are computed again in the prompt's place: the
// prompt's rows as blocks, the answer's without ever being one.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/request_state.h"

namespace kvant {

class Scheduler {
 public:
  using Requests = std::map<RequestId, std::unique_ptr<RequestState>>;
  struct Failure {
    Sample* sample;
    Status status;
  };

  // All outlive the scheduler.
  Scheduler(KvCache& cache, const Tokenizer& tokenizer, const EngineOptions& options);
  ~Scheduler();  // releases every sequence

  // not_found or invalid_argument where the request's session can't take it.
  Result<RequestId> add(GenerationRequest request);
  const Requests& requests() const { return requests_; }
  SessionId open_session();
  Status close_session(SessionId id);

  // Swaps in and starts what there is room for. The samples that can't go on.
  std::vector<Failure> admit();
  std::vector<Slice> plan() const;
  // After a step that had no room: something leaves the cache. False if only one is left.
  bool preempt();
  // The part of a slice that needs the least room at once: up to the end of its page.
  static Slice within_page(const Slice& slice);
  // A slice's tokens are in the cache.
  Status advance(const Slice& slice);
  // The prompt is read: every other sample begins with its pages. Those that can't.
  std::vector<Failure> fork_samples(RequestState& request);
  // Beams go on from one another: a sequence goes to its first child, the others fork it.
  Status move_beams(RequestState& request, std::span<const BeamSearch::Child> children);
  // The sample is done with: its pages are freed, unless a session keeps them. The stats of its
  // request, if it was the last, which is gone then.
  std::optional<RequestStats> finish(Sample& sample);
  void cancel(RequestId id);

  EngineLoad load() const;

 private:
  struct Session {
    bool busy = false;    // a request uses it
    bool exists = false;  // while not busy: `sequence` is one
    bool swapped = false;
    SequenceId sequence = 0;
    std::vector<int32_t> cached;  // the tokens that it holds
  };

  bool shares(const RequestState& r) const;
  bool is_whole(const RequestState& r) const;
  int64_t last_boundary(const Sample& sample) const;
  size_t prompt_tokens(const Sample& sample, size_t budget) const;
  Status start(RequestState& r);
  Status start_in_session(Sample& sample, Session& session);
  bool may_start(const RequestState& r);
  bool has_room(uint64_t bytes);
  Status begin(Sample& sample);
  Status fork(const Sample& from, Sample& to);
  Status come_back(RequestState& r);
  bool go_out(Sample& sample);
  Status swap_in(SequenceId sequence);
  enum class Bound : uint8_t { kSwapMemory, kNone };
  Status swap_out(SequenceId sequence, int64_t tokens, Bound bound);
  bool swap_out_session();
  Status come_back(Sample& sample);
  bool leave_cache(Sample& sample);
  void leave(Sample& sample);
  template <typename Visit>
  void for_each_sample(Visit visit) const;
  int64_t count(Sample::Place place) const;

  KvCache& cache_;
  const Tokenizer& tokenizer_;
  const EngineOptions& options_;
  bool has_windows_;
  uint64_t next_id_ = 1;
  uint64_t num_files_ = 0;
  Requests requests_;  // in order of submission
  std::map<SessionId, Session> sessions_;
  EngineLoad totals_;  // what only grows
};

}  // namespace kvant
