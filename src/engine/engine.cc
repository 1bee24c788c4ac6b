#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  constexpr std::string_view kNames[] = {"running", "stop", "length", "failed"};
  return kNames[static_cast<size_t>(reason)];
}

struct Engine::Running {
  Running(RequestId id, GenerationRequest r, SessionId session, const Tokenizer& tokenizer)
      : id(id),
        request(std::move(r)),
        session(session),
        sampler(request.sampling),
        decoder(tokenizer),
        stops(request.stop),
        tokens(request.prompt) {
    stats.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  }

  RequestId id;
  GenerationRequest request;
  SessionId session;  // its own, unless the request named one
  Sampler sampler;
  StreamDecoder decoder;
  StopStrings stops;
  std::vector<int32_t> tokens;  // prompt and answer; the cache holds a prefix of them
  bool started = false;
  RequestStats stats;
};

struct Engine::Slice {
  Running* running;
  size_t first, count;  // of running->tokens
  bool ends() const { return first + count == running->tokens.size(); }
};

Engine::Engine(Model& model, KvCache& cache, const EngineOptions& options)
    : model_(model), cache_(cache), options_(options) {
  const int64_t most = model.info().max_positions;
  context_ = options.context > 0 ? std::min(options.context, most) : most;
}

Engine::~Engine() {
  for (auto& [id, session] : sessions_) {
    if (session.exists) (void)cache_.release_sequence(session.sequence);
  }
}

Result<RequestId> Engine::submit(GenerationRequest request) {
  KVANT_TRY(validate(request.sampling));
  if (request.max_tokens < 1) {
    return invalid_argument(fmt::format("max_tokens is {}, wanted at least 1", request.max_tokens));
  }
  if (request.prompt.empty()) return invalid_argument("the prompt has no tokens");
  for (int32_t id : request.prompt) {
    if (id < 0 || id >= model_.info().vocab_size) {
      return invalid_argument(
          fmt::format("token id {} is outside the vocabulary of {}", id, model_.info().vocab_size));
    }
  }
  if (static_cast<int64_t>(request.prompt.size()) > context_) {
    return invalid_argument(fmt::format("the prompt has {} tokens; the context holds {}",
                                        request.prompt.size(), context_));
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return invalid_argument("a stop string is empty");
  }
  SessionId session = request.session;
  if (session == 0) {
    session = open_session();
  } else {
    const auto it = sessions_.find(session);
    if (it == sessions_.end()) return not_found(fmt::format("session {} doesn't exist", session));
    if (it->second.busy)
      return invalid_argument(fmt::format("session {} has a request that isn't finished", session));
  }
  sessions_[session].busy = true;
  const RequestId id = next_id_++;
  requests_[id] = std::make_unique<Running>(id, std::move(request), session, model_.tokenizer());
  return id;
}

Status Engine::cancel(RequestId id) {
  if (!requests_.contains(id)) return not_found(fmt::format("request {} isn't running", id));
  finish(id);
  return {};
}

SessionId Engine::open_session() {
  const SessionId id = next_id_++;
  sessions_[id] = {};
  return id;
}

Status Engine::close_session(SessionId id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return not_found(fmt::format("session {} doesn't exist", id));
  if (it->second.busy)
    return invalid_argument(fmt::format("session {} has a request that isn't finished", id));
  Status status;
  if (it->second.exists) status = cache_.release_sequence(it->second.sequence);
  sessions_.erase(it);
  return status;
}

// Makes the request's sequence, or cuts the session's back to what it shares with the prompt. The
// prompt's last token is always computed: its logits are wanted.
Status Engine::start(Running& r) {
  Session& session = sessions_[r.session];
  if (!session.exists) {
    KVANT_ASSIGN(session.sequence, cache_.create_sequence());
    session.exists = true;
  }
  const size_t shared = std::min(common_prefix(session.cached, r.tokens), r.tokens.size() - 1);
  if (shared < session.cached.size()) {
    KVANT_ASSIGN(const Rollback rollback,
                 cache_.truncate(session.sequence, static_cast<int64_t>(shared)));
    session.cached.resize(static_cast<size_t>(rollback.kept));
  }
  r.stats.cached_tokens = static_cast<int64_t>(session.cached.size());
  r.started = true;
  return {};
}

std::vector<Engine::Slice> Engine::plan_batch() {
  std::vector<Slice> slices;
  const auto chunk = static_cast<size_t>(options_.chunk);
  size_t budget = chunk;
  for (auto& [id, r] : requests_) {
    const size_t first = sessions_[r->session].cached.size();
    const size_t left = r->tokens.size() - first;
    if (r->stats.new_tokens > 0) {  // decoding: one row, outside the prefill budget
      slices.push_back({r.get(), first, left});
      continue;
    }
    size_t count = std::min(left, budget);
    // A chunk that doesn't end the prompt ends on a page, so that every full block is computed as
    // one.
    if (count < left && chunk % kPageTokens == 0) {
      const size_t end = (first + count) / kPageTokens * kPageTokens;
      count = end > first ? end - first : 0;
    }
    if (count == 0) continue;
    slices.push_back({r.get(), first, count});
    budget -= count;
  }
  return slices;
}

Status Engine::run(std::span<const Slice> slices, float* hidden) {
  std::vector<ForwardItem> items;
  for (const Slice& s : slices) {
    items.push_back({sessions_[s.running->session].sequence,
                     std::span(s.running->tokens).subspan(s.first, s.count)});
  }
  KVANT_TRY(model_.forward(cache_, items, hidden));
  for (const Slice& s : slices) {
    std::vector<int32_t>& cached = sessions_[s.running->session].cached;
    const auto begin = s.running->tokens.begin() + static_cast<std::ptrdiff_t>(s.first);
    cached.insert(cached.end(), begin, begin + static_cast<std::ptrdiff_t>(s.count));
  }
  return {};
}

std::vector<GenerationEvent> Engine::step() {
  std::vector<GenerationEvent> events;
  const Clock::time_point begin = Clock::now();
  std::vector<RequestId> ids;
  for (const auto& [id, r] : requests_) ids.push_back(id);
  for (RequestId id : ids) {
    Running& r = *requests_[id];
    if (r.started) continue;
    if (Status status = start(r); !status.ok()) fail(r, std::move(status), events);
  }
  std::vector<Slice> slices = plan_batch();
  if (slices.empty()) return events;

  const auto hidden_size = static_cast<size_t>(model_.info().hidden_size);
  size_t total = 0;
  for (const Slice& s : slices) total += s.count;
  hidden_.resize(total * hidden_size);
  if (Status status = run(slices, hidden_.data()); !status.ok()) {
    // The batch left every sequence as it was: each request gets its own try, so that one can't
    // take the others down.
    std::vector<Slice> done;
    size_t row = 0;
    for (const Slice& s : slices) {
      Status alone = slices.size() == 1 ? status : run({&s, 1}, hidden_.data() + row * hidden_size);
      if (alone.ok()) {
        done.push_back(s);
        row += s.count;
      } else {
        fail(*s.running, std::move(alone), events);
      }
    }
    slices = std::move(done);
  }
  std::vector<std::pair<Running*, bool>> timed;  // and whether this step was prefill
  for (const Slice& s : slices) timed.emplace_back(s.running, s.running->stats.new_tokens == 0);
  const size_t failed = events.size();
  sample_all(slices, hidden_.data(), events);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  for (auto [r, prefill] : timed)
    (prefill ? r->stats.prefill_seconds : r->stats.decode_seconds) += seconds;
  for (size_t i = failed; i < events.size(); ++i) {
    if (events[i].finish != FinishReason::kRunning) finish(events[i].request);
  }
  std::stable_sort(
      events.begin(), events.end(),
      [](const GenerationEvent& a, const GenerationEvent& b) { return a.request < b.request; });
  return events;
}

// Logits of the last row of every request whose tokens are all in the cache, and the next token
// from them.
void Engine::sample_all(std::span<const Slice> slices, const float* hidden,
                        std::vector<GenerationEvent>& events) {
  const auto hidden_size = static_cast<size_t>(model_.info().hidden_size);
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  std::vector<Running*> ready;
  rows_.clear();
  size_t row = 0;
  for (const Slice& s : slices) {
    row += s.count;
    if (!s.ends()) continue;
    ready.push_back(s.running);
    rows_.insert(rows_.end(), hidden + (row - 1) * hidden_size, hidden + row * hidden_size);
  }
  if (ready.empty()) return;
  logits_.resize(ready.size() * vocab);
  const Status status = model_.logits(rows_.data(), static_cast<int>(ready.size()),
                                      Model::Dense::kRow, logits_.data());
  for (size_t i = 0; i < ready.size(); ++i) {
    if (status.ok()) {
      events.push_back(advance(*ready[i], std::span(logits_).subspan(i * vocab, vocab)));
    } else {
      events.push_back({ready[i]->id, {}, {}, FinishReason::kFailed, status});
    }
  }
}

GenerationEvent Engine::advance(Running& r, std::span<const float> logits) {
  GenerationEvent event;
  event.request = r.id;
  Result<int32_t> token = r.sampler.sample(logits, r.tokens);
  if (!token.ok()) {
    event.finish = FinishReason::kFailed;
    event.status = token.status();
    return event;
  }
  event.token = *token;
  r.tokens.push_back(*token);
  ++r.stats.new_tokens;
  const std::span<const int32_t> ends = model_.tokenizer().end_of_generation();
  const bool end_token = std::find(ends.begin(), ends.end(), *token) != ends.end();
  if (end_token && !r.request.ignore_end) {
    event.finish = FinishReason::kStop;
  } else {
    event.text = r.stops.push(r.decoder.push(*token));
    // The cache holds all tokens but this one; where it is full, this one has no place to go.
    const bool full = static_cast<int64_t>(r.tokens.size()) > context_;
    if (r.stops.stopped()) {
      event.finish = FinishReason::kStop;
    } else if (r.stats.new_tokens >= r.request.max_tokens || full) {
      event.finish = FinishReason::kLength;
    }
  }
  if (event.finish != FinishReason::kRunning && !r.stops.stopped()) {
    event.text += r.stops.push(r.decoder.flush());
    event.text += r.stops.flush();
  }
  return event;
}

void Engine::fail(Running& r, Status status, std::vector<GenerationEvent>& events) {
  events.push_back({r.id, {}, {}, FinishReason::kFailed, std::move(status)});
  finish(r.id);
}

void Engine::finish(RequestId id) {
  const auto it = requests_.find(id);
  Running& r = *it->second;
  Session& session = sessions_[r.session];
  session.busy = false;
  finished_[id] = r.stats;
  if (r.request.session == 0) (void)close_session(r.session);  // its own session: nothing to keep
  requests_.erase(it);
}

std::optional<RequestStats> Engine::take_stats(RequestId id) {
  const auto it = finished_.find(id);
  if (it == finished_.end()) return std::nullopt;
  const RequestStats stats = it->second;
  finished_.erase(it);
  return stats;
}

}  // namespace kvant
