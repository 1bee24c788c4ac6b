#include "cli/answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/cache_size.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace kvant::cli {
namespace {

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

GenerationRequest make_request(const Settings& s, std::vector<int32_t> prompt) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling = {
      .temperature = s.temperature,
      .top_k = s.is_given("top-k") ? std::optional<int>(static_cast<int>(s.top_k)) : std::nullopt,
      .top_p = s.top_p,
      .min_p = s.min_p,
      .repeat_penalty = s.repeat_penalty,
      .seed = static_cast<uint64_t>(s.seed)};
  request.max_tokens = s.max_tokens;
  request.stop = s.stop;
  request.ignore_end = s.ignore_end;
  return request;
}

void note_idle_sampling(const Settings& s) {
  if (s.temperature > 0) return;
  std::vector<std::string> idle;
  for (const char* name : {"top-k", "top-p", "min-p", "seed"}) {
    if (s.is_given(name)) idle.push_back(fmt::format("--{}", name));
  }
  if (idle.empty()) return;
  note("note     {}: no effect without a --temperature above 0, the best token is taken\n",
       fmt::join(idle, ", "));
}

Result<Answer> run_request(Engine& engine, GenerationRequest request, Show show,
                           const std::function<bool()>& cancelled) {
  Answer answer;
  const int64_t most = request.max_tokens;
  KVANT_ASSIGN(const RequestId id, engine.submit(std::move(request)));
  while (!engine.idle()) {
    if (cancelled()) {
      KVANT_TRY(engine.cancel(id));
      break;
    }
    for (const GenerationEvent& event : engine.step()) {
      KVANT_TRY(event.status);
      if (event.token) answer.tokens.push_back(*event.token);
      answer.text += event.text;
      answer.finish = event.finish;
      if (show == Show::kYes) KVANT_TRY(write_text("-", event.text));
    }
  }
  if (show == Show::kYes) KVANT_TRY(write_text("-", "\n"));
  answer.stats = engine.take_stats(id).value_or(RequestStats{});
  if (answer.finish == FinishReason::kLength && answer.stats.new_tokens < most)
    answer.full_context = engine.context();
  return answer;
}

std::string describe(const Answer& answer, const CacheUsage& usage, double exact_bits) {
  const RequestStats& s = answer.stats;
  std::string out = fmt::format("prompt {}", counted(s.prompt_tokens, "token"));
  if (s.cached_tokens > 0) out += fmt::format(", {} of them cached", s.cached_tokens);
  out +=
      fmt::format(", at {:.0f} tok/s; {}",
                  rate(static_cast<double>(s.prompt_tokens - s.cached_tokens), s.prefill_seconds),
                  counted(s.new_tokens, "new token"));
  if (s.new_tokens > 1)
    out += fmt::format(" at {:.1f} tok/s",
                       rate(static_cast<double>(s.new_tokens - 1), s.decode_seconds));
  out += fmt::format("; cache {}", describe_size(usage, exact_bits));
  if (answer.full_context > 0)
    return out + fmt::format("; ended as the context of {} was full",
                             counted(answer.full_context, "token"));
  out += fmt::format("; ended by {}", answer.finish == FinishReason::kRunning
                                          ? "the user"
                                          : finish_reason_name(answer.finish));
  return out;
}

}  // namespace kvant::cli
