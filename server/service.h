// Service: the engine on a thread of its own, for callers on another one.
//
// Requests and cancellations are queued and taken between two steps, so that neither waits for a
// batch. What happens to a request is told to its listener, on the engine's thread: a listener
// hands it on and returns.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "server/metrics.h"

namespace kvant::server {

// Told what becomes of one request: refused(), or events and then done().
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void refused(const Status& status) = 0;
  virtual void happened(const GenerationEvent& event) = 0;
  virtual void done(const RequestStats& stats) = 0;
};

struct ServiceOptions {
  EngineOptions engine;
  int64_t max_queue = 256;  // requests that are accepted and haven't ended
};

class Service {
 public:
  using Ticket = uint64_t;

  // All outlive the service.
  Service(Model& model, KvCache& cache, Metrics& metrics, const ServiceOptions& options);
  // Cancels what runs.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  int64_t context() const { return context_; }

  // exhausted where as many as max_queue are at work, cancelled after drain().
  Result<Ticket> submit(GenerationRequest request, std::shared_ptr<Listener> listener);
  // The listener hears nothing more of it once the step in progress is over.
  void cancel(Ticket ticket);

  // Nothing more is accepted; what was goes on to its end.
  void drain();
  bool is_draining() const;
  bool is_idle() const;  // nothing accepted is left

 private:
  using Clock = std::chrono::steady_clock;
  struct Submission {
    Ticket ticket;
    GenerationRequest request;
    std::shared_ptr<Listener> listener;
    Clock::time_point at;
  };
  struct Cancellation {
    Ticket ticket;
  };
  // A request that the engine has; its answers' last tokens, for the time between two.
  struct Running {
    Ticket ticket;
    std::shared_ptr<Listener> listener;
    Clock::time_point submitted;
    std::vector<Clock::time_point> last_token;
    int answers_left;
    FinishReason reason = FinishReason::kStop;
  };

  void work();
  void take(Submission submission);
  void take(const Cancellation& cancellation);
  void tell(const GenerationEvent& event);
  void forget(RequestId id);
  void publish();

  Metrics& metrics_;
  KvCache& cache_;
  Engine engine_;
  const int64_t context_;
  const int64_t max_queue_;

  // Of the engine's thread.
  std::map<RequestId, Running> running_;
  std::map<Ticket, RequestId> ids_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<std::variant<Submission, Cancellation>> commands_;
  Ticket next_ticket_ = 1;
  int64_t outstanding_ = 0;
  bool draining_ = false, stop_ = false;

  std::thread thread_;  // the last member: it uses all others
};

}  // namespace kvant::server
