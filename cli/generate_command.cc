// kvant generate: one answer to one prompt, streamed.

#include <fmt/format.h>

#include "cli/answer.h"
#include "cli/command.h"
#include "cli/open_model.h"
#include "cli/prompt.h"

namespace kvant::cli {
namespace {

Result<std::vector<int32_t>> prompt_tokens(const Invocation& in, const Model& model,
                                           const std::string& prompt) {
  if (!in.settings.chat) return text_tokens(model.tokenizer(), prompt);
  const ChatMessage message{"user", prompt};
  return chat_tokens(model.tokenizer(), {&message, 1});
}

Json answer_json(const Answer& answer, const CacheUsage& usage) {
  const RequestStats& s = answer.stats;
  const auto rate = [](int64_t n, double seconds) {
    return seconds > 0 ? Json(static_cast<double>(n) / seconds) : Json();
  };
  return {
      {"text", answer.text},
      {"tokens", answer.tokens},
      {"finish_reason", finish_reason_name(answer.finish)},
      {"prompt_tokens", s.prompt_tokens},
      {"new_tokens", s.new_tokens},
      {"prefill_tok_s", rate(s.prompt_tokens, s.prefill_seconds)},
      {"decode_tok_s", s.new_tokens > 1 ? rate(s.new_tokens - 1, s.decode_seconds) : Json()},
      {"cache_bytes", usage.live_bytes},
      {"effective_bits", usage.ideal_bytes > 0 ? Json(16 * static_cast<double>(usage.live_bytes) /
                                                      static_cast<double>(usage.ideal_bytes))
                                               : Json()}};
}

}  // namespace

Status run_generate(const Invocation& in) {
  KVANT_ASSIGN(const std::string prompt, read_prompt(in.settings));
  KVANT_ASSIGN(const OpenModel open, open_model(in));
  KVANT_ASSIGN(const CachePlanChoice choice,
               choose_cache(in.settings, in.settings.kv, open.model->info()));
  KVANT_ASSIGN(std::vector<int32_t> tokens, prompt_tokens(in, *open.model, prompt));
  announce(in, open, {&choice, 1});
  KVANT_ASSIGN(const std::unique_ptr<KvCache> cache,
               KvCache::create(choice.options, *open.threads));
  Engine engine(*open.model, *cache,
                {.chunk = static_cast<int>(in.settings.chunk), .context = in.settings.context});

  const bool quiet = takes_output(in.settings.json);
  GenerationRequest request = make_request(in.settings, std::move(tokens));
  request.session = engine.open_session();  // keeps the pages until their size is printed
  KVANT_ASSIGN(const Answer answer, run_request(
                                        engine, std::move(request),
                                        [quiet](std::string_view text) {
                                          if (quiet) return;
                                          fmt::print("{}", text);
                                          std::fflush(stdout);
                                        },
                                        [] { return false; }));
  if (!quiet) fmt::print("\n");
  // The text comes before the figures, also where both go to one pipe.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return io_error("the answer can't be written to the output");
  }
  const CacheUsage usage = cache->usage();
  fmt::print(stderr, "{}\n", describe(answer, usage));
  if (!in.settings.json.empty()) {
    Json json = run_facts(in, open);
    json["kv"] = choice.name;
    json.update(formats_json(choice));
    json.update(answer_json(answer, usage));
    KVANT_TRY(write_json(in.settings.json, json));
  }
  return {};
}

}  // namespace kvant::cli
