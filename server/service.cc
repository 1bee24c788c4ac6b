#include "server/service.h"

#include <fmt/format.h>

namespace kvant::server {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Service::Service(Model& model, KvCache& cache, Metrics& metrics, const ServiceOptions& options)
    : metrics_(metrics),
      cache_(cache),
      engine_(model, cache, options.engine),
      context_(engine_.context()),
      max_queue_(options.max_queue) {
  publish();
  thread_ = std::thread([this] { work(); });
}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Result<Service::Ticket> Service::submit(GenerationRequest request,
                                        std::shared_ptr<Listener> listener) {
  Ticket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    if (draining_) return cancelled("the server is stopping");
    if (outstanding_ >= max_queue_) {
      return exhausted(
          fmt::format("{} requests are at work or waiting, as many as are accepted", outstanding_));
    }
    ++outstanding_;
    ticket = next_ticket_++;
    commands_.emplace_back(
        Submission{ticket, std::move(request), std::move(listener), Clock::now()});
  }
  wake_.notify_one();
  return ticket;
}

void Service::cancel(Ticket ticket) {
  {
    const std::lock_guard lock(mutex_);
    commands_.emplace_back(Cancellation{ticket});
  }
  wake_.notify_one();
}

void Service::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool Service::is_draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

bool Service::is_idle() const {
  const std::lock_guard lock(mutex_);
  return outstanding_ == 0;
}

void Service::work() {
  while (true) {
    std::vector<std::variant<Submission, Cancellation>> commands;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !commands_.empty() || !running_.empty(); });
      if (stop_) return;
      commands.swap(commands_);
    }
    for (auto& command : commands) std::visit([this](auto& c) { take(std::move(c)); }, command);
    const std::vector<GenerationEvent> events = engine_.step();
    publish();  // before anyone is told: who has an answer finds it counted
    for (const GenerationEvent& event : events) tell(event);
  }
}

void Service::take(Submission submission) {
  const int answers = submission.request.num_samples;
  const Result<RequestId> id = engine_.submit(std::move(submission.request));
  if (!id.ok()) {
    submission.listener->refused(id.status());
    const std::lock_guard lock(mutex_);
    --outstanding_;
    return;
  }
  ids_[submission.ticket] = *id;
  running_.emplace(*id, Running{.ticket = submission.ticket,
                                .listener = std::move(submission.listener),
                                .submitted = submission.at,
                                .last_token = std::vector<Clock::time_point>(
                                    static_cast<size_t>(answers), submission.at),
                                .answers_left = answers});
}

void Service::take(const Cancellation& cancellation) {
  const auto found = ids_.find(cancellation.ticket);
  if (found == ids_.end()) return;  // it has ended meanwhile
  const RequestId id = found->second;
  (void)engine_.cancel(id);
  const RequestStats stats = engine_.take_stats(id).value_or(RequestStats());
  metrics_.request_done("abort", seconds_between(running_.at(id).submitted, Clock::now()), stats);
  forget(id);
}

void Service::tell(const GenerationEvent& event) {
  const auto found = running_.find(event.request);
  if (found == running_.end()) return;
  Running& r = found->second;
  const Clock::time_point now = Clock::now();
  if (event.token) {
    Clock::time_point& last = r.last_token[static_cast<size_t>(event.sample)];
    const double seconds = seconds_between(last, now);
    last == r.submitted ? metrics_.time_to_first_token(seconds)
                        : metrics_.inter_token_latency(seconds);
    last = now;
  }
  r.listener->happened(event);
  if (event.finish == FinishReason::kRunning) return;
  if (event.finish != FinishReason::kStop) r.reason = event.finish;
  if (--r.answers_left > 0) return;
  const RequestStats stats = engine_.take_stats(event.request).value_or(RequestStats());
  metrics_.request_done(finish_reason_name(r.reason), seconds_between(r.submitted, now), stats);
  r.listener->done(stats);
  forget(event.request);
}

void Service::forget(RequestId id) {
  const auto found = running_.find(id);
  ids_.erase(found->second.ticket);
  running_.erase(found);
  const std::lock_guard lock(mutex_);
  --outstanding_;
}

void Service::publish() {
  metrics_.set(engine_.load(), cache_.usage(), cache_.options().max_bytes);
}

}  // namespace kvant::server
