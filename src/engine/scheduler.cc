#include "engine/scheduler.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cache/read_rule.h"
#include "cache/swapped_pages.h"

namespace kvant {
namespace {

using Place = Sample::Place;

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

}  // namespace

Scheduler::Scheduler(KvCache& cache, const Tokenizer& tokenizer, const EngineOptions& options)
    : cache_(cache),
      tokenizer_(tokenizer),
      options_(options),
      has_windows_(std::ranges::any_of(cache.options().layers,
                                       [](const CacheLayer& l) { return l.window > 0; })) {}

Scheduler::~Scheduler() {
  for (auto& [id, r] : requests_) {
    for (auto& sample : r->samples) leave(*sample);
  }
  for (auto& [id, session] : sessions_) {
    if (session.exists) (void)cache_.release_sequence(session.sequence);
  }
}

template <typename Visit>
void Scheduler::for_each_sample(Visit visit) const {
  for (const auto& [id, r] : requests_) {
    for (const auto& sample : r->samples) visit(*sample);
  }
}

int64_t Scheduler::count(Place place) const {
  int64_t n = 0;
  for_each_sample([&](const Sample& s) { n += s.place == place ? 1 : 0; });
  return n;
}

EngineLoad Scheduler::load() const {
  EngineLoad load = totals_;
  load.running = count(Place::kCache);
  load.preempted = count(Place::kSwapped) + count(Place::kDropped);
  for (const auto& [id, r] : requests_) load.waiting += r->is_started() ? 0 : 1;
  return load;
}

// --- Requests and sessions

Result<RequestId> Scheduler::add(GenerationRequest request) {
  if (request.session != 0) {
    const auto it = sessions_.find(request.session);
    if (it == sessions_.end())
      return not_found(fmt::format("session {} doesn't exist", request.session));
    if (it->second.busy)
      return invalid_argument(
          fmt::format("session {} has a request that isn't finished", request.session));
    it->second.busy = true;
  }
  const RequestId id = next_id_++;
  requests_[id] = std::make_unique<RequestState>(id, std::move(request));
  return id;
}

SessionId Scheduler::open_session() {
  const SessionId id = next_id_++;
  sessions_[id] = {};
  return id;
}

Status Scheduler::close_session(SessionId id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return not_found(fmt::format("session {} doesn't exist", id));
  if (it->second.busy)
    return invalid_argument(fmt::format("session {} has a request that isn't finished", id));
  Status status;
  if (it->second.exists) status = cache_.release_sequence(it->second.sequence);
  sessions_.erase(it);
  return status;
}

// Whether the request looks pages up and publishes its own. A session's pages are its own: what it
// was answered came row by row.
bool Scheduler::shares(const RequestState& r) const {
  return cache_.options().prefix_cache && r.request.use_prefix_cache && r.request.session == 0;
}

// --- Who is in the cache

// Makes a sequence, or cuts the session's back to what it shares with the prompt. The prompt's last
// token is always computed: its logits are wanted.
Status Scheduler::start_in_session(Sample& sample, Session& session) {
  if (!session.exists) {
    KVANT_ASSIGN(sample.sequence, cache_.create_sequence());
    return {};
  }
  if (session.swapped) KVANT_TRY(swap_in(session.sequence));
  session.swapped = false;
  const size_t shared =
      std::min(common_prefix(session.cached, sample.tokens), sample.tokens.size() - 1);
  if (shared < session.cached.size()) {
    KVANT_ASSIGN(const Rollback rollback,
                 cache_.truncate(session.sequence, static_cast<int64_t>(shared)));
    session.cached.resize(static_cast<size_t>(rollback.kept));
  }
  session.exists = false;  // the sample has its sequence now
  sample.sequence = session.sequence;
  sample.cached = static_cast<int64_t>(session.cached.size());
  return {};
}

// A sequence that begins with what the prefix index has of the prompt. Of the answer nothing is
// looked up: its rows mustn't be those of another's prompt, which came as blocks.
Status Scheduler::begin(Sample& sample) {
  const RequestState& r = sample.request;
  if (!shares(r) || r.request.prompt_logprobs) {
    KVANT_ASSIGN(sample.sequence, cache_.create_sequence());
    sample.cached = 0;
    return {};
  }
  const std::span<const int32_t> prompt(r.request.prompt);
  KVANT_ASSIGN(const KvCache::PrefixHit hit,
               cache_.create_from_prefix(prompt.first(prompt.size() - 1), r.request.cache_salt));
  sample.sequence = hit.sequence;
  sample.cached = hit.tokens;
  return {};
}

Status Scheduler::start(RequestState& r) {
  r.stats.queue_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - r.submitted).count();
  r.num_unforked = r.request.num_samples;
  r.samples.push_back(std::make_unique<Sample>(r, 0, tokenizer_));
  Sample& sample = *r.samples.front();
  if (r.request.session != 0) {
    KVANT_TRY(start_in_session(sample, sessions_[r.request.session]));
  } else {
    KVANT_TRY(begin(sample));
    if (shares(r) && !r.request.prompt_logprobs) {
      totals_.prefix_queries += r.stats.prompt_tokens;
      totals_.prefix_hits += sample.cached;
    }
  }
  sample.place = Place::kCache;
  r.stats.cached_tokens = sample.cached;
  return {};
}

// Room for so many bytes of a sequence, and beside it a page more for everyone who is there: else
// it would be out again after a few steps. Idle sessions make room; who is alone just begins.
bool Scheduler::has_room(uint64_t bytes) {
  const int64_t running = count(Place::kCache);
  while (true) {
    const CacheRoom room = cache_.room();
    if (running == 0 || !room.free_bytes) return true;
    const uint64_t others = static_cast<uint64_t>(running + 1) * room.page_bytes;
    if (*room.free_bytes >= bytes + others) return true;
    if (!swap_out_session()) return false;
  }
}

bool Scheduler::may_start(const RequestState& r) {
  int64_t places = r.request.num_samples;
  for (const auto& [id, other] : requests_) {
    if (!other->is_started()) continue;
    places +=
        other->is_reading() ? other->num_unforked : static_cast<int64_t>(other->samples.size());
  }
  if (options_.max_running > 0 && places > options_.max_running) return false;
  return has_room(cache_.bytes_at(r.stats.prompt_tokens));
}

std::vector<Scheduler::Failure> Scheduler::admit() {
  std::vector<Failure> failures;
  bool all_back = true;
  for_each_sample([&](Sample& s) {
    const bool is_out = s.place == Place::kSwapped || s.place == Place::kDropped;
    if (!is_out || !all_back) return;
    const uint64_t num_beams = s.request.beams ? s.request.samples.size() : 1;
    const int64_t tokens = s.place == Place::kSwapped ? s.cached : std::ssize(s.tokens);
    all_back = has_room(num_beams * cache_.bytes_at(tokens));
    if (!all_back) return;
    Status status = s.request.beams ? come_back(s.request) : come_back(s);
    if (status.ok()) {
      s.place = Place::kCache;
    } else if (status.code() == Code::kExhausted && count(Place::kCache) > 0) {
      all_back = false;
    } else {
      failures.push_back({&s, std::move(status)});
    }
  });
  for (auto& [id, r] : requests_) {
    if (r->is_started()) continue;
    if (!all_back || !may_start(*r)) break;
    if (Status status = start(*r); !status.ok())
      failures.push_back({r->samples.front().get(), std::move(status)});
  }
  return failures;
}

// All beams, or none: they go on in step.
Status Scheduler::come_back(RequestState& r) {
  for (const auto& sample : r.samples) {
    if (sample->place == Place::kCache) continue;
    if (Status status = swap_in(sample->sequence); !status.ok()) {
      (void)go_out(*sample);
      return status;
    }
    sample->place = Place::kCache;
  }
  return {};
}

// The sample leaves the cache, and with a beam all that it goes on in step with.
bool Scheduler::go_out(Sample& sample) {
  bool is_out = false;
  for (const auto& other : sample.request.samples) {
    const bool goes = other.get() == &sample || sample.request.beams;
    if (goes && other->place == Place::kCache && leave_cache(*other)) is_out = true;
  }
  return is_out;
}

Status Scheduler::swap_in(SequenceId sequence) {
  Status status = cache_.swap_in(sequence);
  while (status.code() == Code::kExhausted && swap_out_session()) status = cache_.swap_in(sequence);
  return status;
}

Status Scheduler::come_back(Sample& sample) {
  return sample.place == Place::kSwapped ? swap_in(sample.sequence) : begin(sample);
}

Status Scheduler::swap_out(SequenceId sequence, int64_t tokens, Bound bound) {
  Status status;
  if (!options_.swap_folder.empty()) {
    status = cache_.swap_out(
        sequence, fmt::format("{}/kvant-swap-{}-{}", options_.swap_folder, getpid(), ++num_files_));
    if (status.ok()) return status;
    ++totals_.refused_files;
    totals_.refused_why = status.message();
  }
  // Where the disk takes nothing, memory does: nobody loses an answer for that.
  if (bound == Bound::kSwapMemory && options_.max_swap_bytes) {
    const uint64_t bytes =
        cache_.usage().swapped_bytes + cache_.bytes_at(tokens) + SwappedPages::kHeaderBytes;
    if (bytes > *options_.max_swap_bytes)
      return exhausted(
          fmt::format("{} bytes would be swapped out, {} may be", bytes, *options_.max_swap_bytes));
  }
  return cache_.swap_out(sequence);
}

bool Scheduler::swap_out_session() {
  for (auto& [id, session] : sessions_) {
    if (!session.exists || session.swapped) continue;
    const auto tokens = std::ssize(session.cached);
    if (!swap_out(session.sequence, tokens, Bound::kNone).ok()) continue;
    session.swapped = true;
    return true;
  }
  return false;
}

bool Scheduler::preempt() {
  if (swap_out_session()) return true;
  Sample* newest = nullptr;
  for_each_sample([&](Sample& s) {
    if (s.place == Place::kCache) newest = &s;
  });
  if (newest == nullptr) return false;
  const auto own = newest->request.beams ? std::ssize(newest->request.samples) : 1;
  if (count(Place::kCache) <= own || !go_out(*newest)) return false;
  ++newest->request.stats.preemptions;
  ++totals_.preemptions;
  return true;
}

// Swaps a sample out; drops its pages where that can't be, unless a session's are among them or
// they are a beam's, which can't fall behind the others.
bool Scheduler::leave_cache(Sample& sample) {
  const bool is_kept = sample.request.request.session != 0 || sample.request.beams;
  const Bound bound = is_kept ? Bound::kNone : Bound::kSwapMemory;
  if (swap_out(sample.sequence, sample.cached, bound).ok()) {
    sample.place = Place::kSwapped;
    return true;
  }
  if (is_kept || !cache_.release_sequence(sample.sequence).ok()) return false;
  sample.place = Place::kDropped;
  sample.cached = 0;
  sample.request.prompt_logprobs.clear();  // scored anew, if the prompt wasn't read yet
  ++totals_.recomputations;
  return true;
}

// --- A step

// Beams are all in the cache.
bool Scheduler::is_whole(const RequestState& r) const {
  return !r.beams || std::ranges::all_of(r.samples, [](const auto& sample) {
    return sample->place == Place::kCache;
  });
}

// Where a later request with this prompt could begin at most: the last token is computed anew.
int64_t Scheduler::last_boundary(const Sample& sample) const {
  return page_of(sample.request.stats.prompt_tokens - 1) * kPageTokens;
}

size_t Scheduler::prompt_tokens(const Sample& sample, size_t budget) const {
  const auto first = static_cast<size_t>(sample.cached);
  const size_t prompt = sample.request.request.prompt.size();
  // Of an answer that was dropped: rows that were decoded one by one never make a block.
  if (first >= prompt)
    return std::min({sample.tokens.size() - first, budget, size_t{kPageTokens} - 1});
  const size_t left = prompt - first;
  size_t count = std::min(left, budget);
  if (count < left && options_.chunk % kPageTokens == 0) {
    const size_t end = (first + count) / kPageTokens * kPageTokens;
    count = end > first ? end - first : 0;
  }
  // What a window shows at the last boundary can be published only by a step that ends there.
  const auto boundary = static_cast<size_t>(last_boundary(sample));
  if (has_windows_ && shares(sample.request) && first < boundary && first + count > boundary)
    count = boundary - first;
  return count;
}

std::vector<Slice> Scheduler::plan() const {
  std::vector<Slice> slices;
  for_each_sample([&](Sample& s) {
    if (s.place == Place::kCache && s.is_at_end() && is_whole(s.request))
      slices.push_back({&s, static_cast<size_t>(s.cached), 1});
  });
  // However many are decoding, prompts go on by a page.
  const auto chunk = static_cast<size_t>(options_.chunk);
  const size_t least = std::min<size_t>(chunk, kPageTokens);
  size_t budget = slices.size() + least < chunk ? chunk - slices.size() : least;
  for_each_sample([&](Sample& s) {
    if (s.place != Place::kCache || s.is_at_end()) return;
    const size_t count = prompt_tokens(s, budget);
    if (count == 0) return;
    slices.push_back({&s, static_cast<size_t>(s.cached), count});
    budget -= count;
  });
  return slices;
}

Slice Scheduler::within_page(const Slice& slice) {
  Slice out = slice;
  out.count = std::min<size_t>(slice.count, kPageTokens - slice.first % kPageTokens);
  return out;
}

Status Scheduler::advance(const Slice& slice) {
  Sample& s = *slice.sample;
  const int64_t before = page_of(s.cached);
  s.cached += static_cast<int64_t>(slice.count);
  if (!shares(s.request) || page_of(s.cached) == before) return {};
  return cache_.publish(s.sequence, s.held(), s.request.request.cache_salt);
}

// `to` begins with what `from` holds.
Status Scheduler::fork(const Sample& from, Sample& to) {
  KVANT_ASSIGN(const KvCache::Fork fork, cache_.fork(from.sequence, from.cached));
  to.sequence = fork.sequence;
  to.cached = fork.rollback.kept;
  to.place = Place::kCache;
  return {};
}

std::vector<Scheduler::Failure> Scheduler::fork_samples(RequestState& r) {
  std::vector<Failure> failures;
  const int num_samples = std::exchange(r.num_unforked, 0);
  const Sample& first = *r.samples.front();
  for (int i = 1; i < num_samples; ++i) {
    r.samples.push_back(std::make_unique<Sample>(r, i, tokenizer_));
    Sample& sample = *r.samples.back();
    if (Status status = fork(first, sample); !status.ok())
      failures.push_back({&sample, std::move(status)});
  }
  return failures;
}

Status Scheduler::move_beams(RequestState& r, std::span<const BeamSearch::Child> children) {
  std::vector<std::unique_ptr<Sample>> next;
  std::vector<bool> is_taken(r.samples.size());
  Status status;
  for (size_t i = 0; i < children.size() && status.ok(); ++i) {
    const auto p = static_cast<size_t>(children[i].parent);
    const Sample& parent = *r.samples[p];
    next.push_back(std::make_unique<Sample>(r, static_cast<int>(i), tokenizer_));
    Sample& beam = *next.back();
    beam.tokens = parent.tokens;
    beam.tokens.push_back(children[i].token);
    beam.new_tokens = parent.new_tokens + 1;
    if (is_taken[p]) {
      status = fork(parent, beam);
      continue;
    }
    beam.sequence = parent.sequence;
    beam.cached = parent.cached;
    beam.place = Place::kCache;
    is_taken[p] = true;
  }
  for (size_t p = 0; p < r.samples.size(); ++p) {
    if (!is_taken[p]) leave(*r.samples[p]);
  }
  r.samples = std::move(next);
  return status;
}

// --- The end

// The sample has no sequence any more.
void Scheduler::leave(Sample& sample) {
  if (sample.place == Place::kNowhere || sample.place == Place::kDropped) return;
  const SessionId id = sample.request.request.session;
  if (id == 0) {
    (void)cache_.release_sequence(sample.sequence);
  } else {
    Session& session = sessions_[id];
    session.exists = true;
    session.swapped = sample.place == Place::kSwapped;
    session.sequence = sample.sequence;
    session.cached.assign(sample.held().begin(), sample.held().end());
  }
  sample.place = Place::kNowhere;
}

std::optional<RequestStats> Scheduler::finish(Sample& sample) {
  RequestState& r = sample.request;
  leave(sample);
  std::erase_if(r.samples, [&](const auto& s) { return s.get() == &sample; });
  if (!r.samples.empty()) return std::nullopt;
  const RequestStats stats = r.stats;
  cancel(r.id);
  return stats;
}

void Scheduler::cancel(RequestId id) {
  const auto it = requests_.find(id);
  for (auto& sample : it->second->samples) leave(*sample);
  if (const SessionId session = it->second->request.session; session != 0)
    sessions_[session].busy = false;
  requests_.erase(it);
}

}  // namespace kvant
