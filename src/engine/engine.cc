#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

#include "cache/read_rule.h"
#include "engine/scheduler.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::span<const int32_t> kNoTokens;

int64_t most_tokens(const Model& model, const KvCache& cache, int64_t asked) {
  int64_t most = model.info().max_positions;
  if (asked > 0) most = std::min(asked, most);
  return std::min(most, cache.room().sequence_tokens.value_or(most));
}

Status check_logprobs(std::string_view field, const std::optional<int>& top, int vocab_size) {
  if (!top || (*top >= 0 && *top <= vocab_size)) return {};
  return invalid_argument(fmt::format("{} is {}, wanted 0 to {}", field, *top, vocab_size));
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  constexpr std::string_view kNames[] = {"running", "stop", "length", "failed"};
  return kNames[static_cast<size_t>(reason)];
}

Engine::Engine(Model& model, KvCache& cache, const EngineOptions& options)
    : model_(model),
      cache_(cache),
      options_(options),
      context_(most_tokens(model, cache, options.context)),
      scheduler_(std::make_unique<Scheduler>(cache, model.tokenizer(), options_)) {}

Engine::~Engine() = default;

bool Engine::idle() const { return scheduler_->requests().empty(); }

EngineLoad Engine::load() const { return scheduler_->load(); }

Status Engine::check_beams(const GenerationRequest& request) const {
  const double temperature = request.sampling.temperature;
  if (temperature != 0) {
    return invalid_argument(
        fmt::format("temperature is {}, wanted 0 with beam search", temperature));
  }
  if (request.sampling.repeat_penalty != 1)
    return invalid_argument(fmt::format("repeat_penalty is {}, wanted 1 with beam search",
                                        request.sampling.repeat_penalty));
  if (!std::isfinite(request.beams->length_penalty))
    return invalid_argument(
        fmt::format("length_penalty is {}, wanted a finite number", request.beams->length_penalty));
  if (request.max_tokens < 1)
    return invalid_argument("max_tokens is 0, wanted at least 1 with beam search");
  if (!request.stop.empty()) return invalid_argument("beam search takes no stop strings");
  if (request.session != 0) return invalid_argument("beam search takes no session");
  const int64_t most =
      (model_.info().vocab_size - std::ssize(model_.tokenizer().end_of_generation())) / 2;
  if (request.num_samples > most) {
    return invalid_argument(fmt::format(
        "num_samples is {}, wanted 1 to {} beams of this vocabulary", request.num_samples, most));
  }
  const uint64_t pool = cache_.options().max_bytes;
  const int64_t prompt = std::ssize(request.prompt);
  const int64_t tokens =
      prompt + std::min(request.max_tokens, std::max<int64_t>(context_ - prompt, 1));
  const uint64_t bytes = static_cast<uint64_t>(request.num_samples) * cache_.bytes_at(tokens);
  if (pool == 0 || bytes <= pool) return {};
  return exhausted(
      fmt::format("{} beams of {} tokens take up to {} bytes; the cache has {}: wanted fewer beams "
                  "or a smaller "
                  "max_tokens",
                  request.num_samples, tokens, bytes, pool));
}

Status Engine::check(const GenerationRequest& request) const {
  KVANT_TRY(validate(request.sampling));
  const int64_t least = request.prompt_logprobs ? 0 : 1;
  if (request.max_tokens < least) {
    return invalid_argument(
        fmt::format("max_tokens is {}, wanted at least {}", request.max_tokens, least));
  }
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return invalid_argument(fmt::format("min_tokens is {}, wanted 0 to max_tokens, which is {}",
                                        request.min_tokens, request.max_tokens));
  }
  KVANT_TRY(check_logprobs("logprobs", request.logprobs, model_.info().vocab_size));
  KVANT_TRY(check_logprobs("prompt_logprobs", request.prompt_logprobs, model_.info().vocab_size));
  if (request.session != 0 && request.prompt_logprobs)
    return invalid_argument("prompt_logprobs are asked for in a session, which reads what is new");
  if (request.num_samples < 1 ||
      (options_.max_running > 0 && request.num_samples > options_.max_running)) {
    const std::string most =
        options_.max_running > 0 ? fmt::format("1 to {}", options_.max_running) : "at least 1";
    return invalid_argument(fmt::format("num_samples is {}, wanted {}", request.num_samples, most));
  }
  if (request.session != 0 && request.num_samples > 1) {
    return invalid_argument(
        fmt::format("num_samples is {}; a session takes one answer", request.num_samples));
  }
  if (request.prompt.empty()) return invalid_argument("the prompt has no tokens");
  for (int32_t id : request.prompt) {
    if (id < 0 || id >= model_.info().vocab_size) {
      return invalid_argument(
          fmt::format("token id {} is outside the vocabulary of {}", id, model_.info().vocab_size));
    }
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return invalid_argument("a stop string is empty");
  }
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  if (tokens <= context_) return request.beams ? check_beams(request) : Status();
  const int64_t without_pool = options_.context > 0
                                   ? std::min(options_.context, model_.info().max_positions)
                                   : model_.info().max_positions;
  if (tokens > without_pool) {
    return invalid_argument(
        fmt::format("the prompt has {} tokens; the context holds {}", tokens, context_));
  }
  return exhausted(fmt::format(
      "the prompt has {} tokens, whose pages take {} bytes; the cache holds at most {} tokens of "
      "one sequence{}",
      tokens, cache_.bytes_at(tokens), context_,
      cache_.options().max_bytes > 0 ? fmt::format(", in {} bytes", cache_.options().max_bytes)
                                     : std::string()));
}

Result<RequestId> Engine::submit(GenerationRequest request) {
  KVANT_TRY(check(request));
  return scheduler_->add(std::move(request));
}

Status Engine::cancel(RequestId id) {
  const auto it = scheduler_->requests().find(id);
  if (it == scheduler_->requests().end())
    return not_found(fmt::format("request {} isn't running", id));
  finished_[id] = it->second->stats;
  scheduler_->cancel(id);
  return {};
}

SessionId Engine::open_session() { return scheduler_->open_session(); }

Status Engine::close_session(SessionId id) { return scheduler_->close_session(id); }

Status Engine::run(std::span<const Slice> slices, float* hidden) {
  std::vector<ForwardItem> items;
  for (const Slice& s : slices)
    items.push_back({s.sample->sequence, std::span(s.sample->tokens).subspan(s.first, s.count)});
  return model_.forward(cache_, items, hidden);
}

// One forward pass over everything that is to do now; over less, as far as there is no room for
// it. The slices that are done, whose hidden states are in hidden_, one behind the other.
std::vector<Slice> Engine::run_batch(std::vector<GenerationEvent>& events) {
  const auto hidden_size = static_cast<size_t>(model_.info().hidden_size);
  std::vector<Slice> slices = scheduler_->plan();
  while (!slices.empty()) {
    size_t total = 0;
    for (const Slice& s : slices) total += s.count;
    hidden_.resize(total * hidden_size);
    const Status status = run(slices, hidden_.data());
    if (status.ok()) break;
    if (status.code() == Code::kExhausted && scheduler_->preempt()) {
      slices = scheduler_->plan();
      continue;
    }
    RequestState& first = slices.front().sample->request;
    if (status.code() == Code::kExhausted && first.beams) {  // alone, and all of the pool is theirs
      first.beams->stop();
      tell_hypotheses(first, events);
      return {};
    }
    if (slices.size() > 1) return run_each(slices, events);
    const Slice smaller = Scheduler::within_page(slices.front());
    if (status.code() != Code::kExhausted || smaller.count == slices.front().count) {
      fail(*slices.front().sample, status, events);
      return {};
    }
    slices = {smaller};
  }
  return slices;
}

// The batch left every sequence as it was: each request gets its own try, so that one can't take
// the others down.
std::vector<Slice> Engine::run_each(std::span<const Slice> slices,
                                    std::vector<GenerationEvent>& events) {
  const auto hidden_size = static_cast<size_t>(model_.info().hidden_size);
  std::vector<Slice> done;
  size_t row = 0;
  for (const Slice& s : slices) {
    if (Status status = run({&s, 1}, hidden_.data() + row * hidden_size); status.ok()) {
      done.push_back(s);
      row += s.count;
    } else {
      fail(*s.sample, status, events);
    }
  }
  return done;
}

std::vector<GenerationEvent> Engine::step() {
  std::vector<GenerationEvent> events;
  const Clock::time_point begin = Clock::now();
  for (const Scheduler::Failure& f : scheduler_->admit()) fail(*f.sample, f.status, events);
  const std::vector<Slice> slices = run_batch(events);
  std::set<std::pair<RequestState*, bool>> timed;  // and whether this step was prefill
  for (const Slice& s : slices) timed.emplace(&s.sample->request, !s.sample->is_decoding());
  sample_all(slices, events);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  for (auto [r, prefill] : timed)
    (prefill ? r->stats.prefill_seconds : r->stats.decode_seconds) += seconds;
  for (const GenerationEvent& event : events) {
    if (event.finish != FinishReason::kRunning) finish(event);
  }
  std::ranges::stable_sort(events, {},
                           [](const GenerationEvent& e) { return std::pair(e.request, e.sample); });
  return events;
}

// Logits of the last row of every request whose tokens are all in the cache, and the next token
// from them: of each of its samples, where this row ends the prompt.
void Engine::sample_all(std::span<const Slice> slices, std::vector<GenerationEvent>& events) {
  const auto hidden_size = static_cast<size_t>(model_.info().hidden_size);
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  std::vector<Sample*> ready;
  rows_.clear();
  const float* end = hidden_.data();
  for (const Slice& s : slices) {
    const float* begin = end;
    end += s.count * hidden_size;
    if (const Status status = score_prompt(s, begin); !status.ok()) {
      fail(*s.sample, status, events);
      continue;
    }
    if (const Status status = scheduler_->advance(s); !status.ok()) {
      fail(*s.sample, status, events);
      continue;
    }
    if (!s.ends()) continue;
    ready.push_back(s.sample);
    rows_.insert(rows_.end(), end - hidden_size, end);
  }
  if (ready.empty()) return;
  logits_.resize(ready.size() * vocab);
  const Status status = model_.logits(rows_.data(), static_cast<int>(ready.size()),
                                      Model::Dense::kRow, logits_.data());
  std::map<RequestState*, std::vector<std::span<const float>>> beams;
  for (size_t i = 0; i < ready.size(); ++i) {
    RequestState& r = ready[i]->request;
    if (!status.ok()) {
      fail(*ready[i], status, events);
      continue;
    }
    const std::span<const float> logits = std::span(logits_).subspan(i * vocab, vocab);
    if (r.request.beams) {
      beams[&r].push_back(logits);
      continue;
    }
    if (!r.is_reading()) {
      events.push_back(next_token(*ready[i], logits));
      continue;
    }
    for (const Scheduler::Failure& f : scheduler_->fork_samples(r))
      fail(*f.sample, f.status, events);
    for (const auto& sample : r.samples) {
      if (sample->place == Sample::Place::kCache) events.push_back(next_token(*sample, logits));
    }
  }
  for (const auto& [r, rows] : beams) extend_beams(*r, rows, events);
}

// `logits`: a row of each beam.
void Engine::extend_beams(RequestState& r, std::span<const std::span<const float>> logits,
                          std::vector<GenerationEvent>& events) {
  if (r.has_failed) return;  // one of them did
  const GenerationRequest& request = r.request;
  if (!r.beams) {
    r.num_unforked = 0;
    BeamSearch::Options options = {.width = request.num_samples,
                                   .length_penalty = request.beams->length_penalty,
                                   .top_logprobs = request.logprobs.value_or(0),
                                   .min_tokens = request.min_tokens,
                                   .max_tokens = request.max_tokens};
    const std::span<const int32_t> ends = model_.tokenizer().end_of_generation();
    if (!request.ignore_end) options.ends.assign(ends.begin(), ends.end());
    r.beams.emplace(std::move(options));
  }
  const auto children = r.beams->extend(logits);
  Status status = children.status();
  if (status.ok() && !children->empty()) status = scheduler_->move_beams(r, *children);
  if (!status.ok()) return fail(*r.samples.front(), status, events);
  const bool is_full =
      !children->empty() && static_cast<int64_t>(r.samples.front()->tokens.size()) > context_;
  if (is_full) r.beams->stop();
  if (is_full || children->empty()) tell_hypotheses(r, events);
}

// What the search came to, token by token.
void Engine::tell_hypotheses(RequestState& r, std::vector<GenerationEvent>& events) {
  int rank = 0;
  for (const BeamSearch::Hypothesis& hypothesis : r.beams->hypotheses()) {
    StreamDecoder decoder(model_.tokenizer());
    for (const TokenLogprobs& token : hypothesis.tokens) {
      GenerationEvent event;
      event.request = r.id;
      event.sample = rank;
      event.token = token.chosen.token;
      const bool is_last = &token == &hypothesis.tokens.back();
      if (!is_last || !hypothesis.has_ended) event.text = decoder.push(token.chosen.token);
      if (is_last) {
        event.text += decoder.flush();
        event.finish = hypothesis.has_ended ? FinishReason::kStop : FinishReason::kLength;
      }
      if (r.request.logprobs) event.logprobs = token;
      event.prompt_logprobs = std::exchange(r.prompt_logprobs, {});
      events.push_back(std::move(event));
    }
    r.stats.new_tokens += std::ssize(hypothesis.tokens);
    ++rank;
  }
}

GenerationEvent Engine::next_token(Sample& s, std::span<const float> logits) {
  GenerationEvent event;
  const GenerationRequest& request = s.request.request;
  event.request = s.request.id;
  event.sample = s.index;
  if (s.index == 0) event.prompt_logprobs = std::move(s.request.prompt_logprobs);
  if (request.max_tokens == 0) {
    event.finish = FinishReason::kLength;
    return event;
  }
  const std::span<const int32_t> ends = model_.tokenizer().end_of_generation();
  const bool may_end = s.new_tokens + 1 >= request.min_tokens;
  // An end token isn't part of what was written, so it takes min_tokens before it.
  Result<int32_t> token =
      s.sampler.sample(logits, s.tokens, s.new_tokens < request.min_tokens ? ends : kNoTokens);
  if (!token.ok()) {
    event.finish = FinishReason::kFailed;
    event.status = token.status();
    return event;
  }
  event.token = *token;
  if (request.logprobs) event.logprobs = logprobs_of(logits, *token, *request.logprobs);
  s.tokens.push_back(*token);
  ++s.new_tokens;
  ++s.request.stats.new_tokens;
  const bool end_token = std::find(ends.begin(), ends.end(), *token) != ends.end();
  if (end_token && !request.ignore_end) {
    event.finish = FinishReason::kStop;
  } else {
    event.text = s.decoder.push(*token);
    if (may_end) event.text = s.stops.push(event.text);
    // The cache holds all tokens but this one; where it is full, this one has no place to go.
    const bool full = static_cast<int64_t>(s.tokens.size()) > context_;
    if (s.stops.stopped()) {
      event.finish = FinishReason::kStop;
    } else if (s.new_tokens >= request.max_tokens || full) {
      event.finish = FinishReason::kLength;
    }
  }
  if (event.finish != FinishReason::kRunning && !s.stops.stopped()) {
    event.text += s.stops.push(s.decoder.flush());
    event.text += s.stops.flush();
  }
  return event;
}

// Log-probabilities of the prompt's tokens that a slice's rows foretell, where they are asked for.
// Rows of whole blocks go the way that the model computed them, so a score doesn't depend on the
// batch.
Status Engine::score_prompt(const Slice& slice, const float* hidden) {
  RequestState& r = slice.sample->request;
  if (!r.request.prompt_logprobs || !r.is_reading()) return {};
  const auto hidden_size = static_cast<size_t>(model_.info().hidden_size);
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  const std::vector<int32_t>& prompt = r.request.prompt;
  prompt_logits_.resize(kPageTokens * vocab);
  for (size_t done = 0; done < slice.count;) {
    const size_t position = slice.first + done;
    const bool is_block = position % kPageTokens == 0 && slice.count - done >= kPageTokens;
    const size_t rows = is_block ? kPageTokens : 1;
    KVANT_TRY(model_.logits(hidden + done * hidden_size, static_cast<int>(rows),
                            is_block ? Model::Dense::kBlock : Model::Dense::kRow,
                            prompt_logits_.data()));
    for (size_t i = 0; i < rows && position + i + 1 < prompt.size(); ++i) {
      r.prompt_logprobs.push_back(logprobs_of(std::span(prompt_logits_).subspan(i * vocab, vocab),
                                              prompt[position + i + 1],
                                              *r.request.prompt_logprobs));
    }
    done += rows;
  }
  return {};
}

// The end of a sample; of all of its request's, where the prompt wasn't read yet.
void Engine::fail(Sample& s, const Status& status, std::vector<GenerationEvent>& events) {
  if (s.request.request.beams) {
    if (std::exchange(s.request.has_failed, true)) return;
    for (int i = 0; i < s.request.request.num_samples; ++i)
      events.push_back({s.request.id, i, {}, {}, FinishReason::kFailed, status});
    return;
  }
  const int end = s.request.is_reading() ? s.request.num_unforked : s.index + 1;
  for (int i = s.index; i < end; ++i)
    events.push_back({s.request.id, i, {}, {}, FinishReason::kFailed, status});
}

void Engine::finish(const GenerationEvent& event) {
  const auto it = scheduler_->requests().find(event.request);
  if (it == scheduler_->requests().end()) return;
  for (const auto& sample : it->second->samples) {
    if (sample->index != event.sample) continue;
    if (const auto stats = scheduler_->finish(*sample)) finished_[event.request] = *stats;
    return;
  }
}

std::optional<RequestStats> Engine::take_stats(RequestId id) {
  const auto it = finished_.find(id);
  if (it == finished_.end()) return std::nullopt;
  const RequestStats stats = it->second;
  finished_.erase(it);
  return stats;
}

}  // namespace kvant
