// kvant generate: one answer to one prompt, streamed.

#include <fmt/format.h>

#include <algorithm>

#include "cli/answer.h"
#include "cli/cache_size.h"
#include "cli/command.h"
#include "cli/open_model.h"
#include "cli/prompt.h"
#include "cli/terminal.h"

namespace kvant::cli {
namespace {

Result<std::vector<int32_t>> prompt_tokens(const Invocation& in, const Model& model,
                                           const std::string& prompt) {
  if (!in.settings.chat) return text_tokens(model.tokenizer(), prompt);
  const ChatMessage message{"user", prompt};
  return chat_tokens(model.tokenizer(), {&message, 1});
}

Json answer_json(const Answer& answer, const CacheUsage& usage, double exact_bits) {
  const RequestStats& s = answer.stats;
  const auto rate = [](int64_t n, double seconds) {
    return seconds > 0 ? Json(static_cast<double>(n) / seconds) : Json();
  };
  return {{"text", answer.text},
          {"tokens", answer.tokens},
          {"finish_reason", finish_reason_name(answer.finish)},
          {"prompt_tokens", s.prompt_tokens},
          {"new_tokens", s.new_tokens},
          {"prefill_tok_s", rate(s.prompt_tokens, s.prefill_seconds)},
          {"decode_tok_s", s.new_tokens > 1 ? rate(s.new_tokens - 1, s.decode_seconds) : Json()},
          {"cache_bytes", usage.live_bytes},
          {"workspace_bytes", usage.workspace_bytes},
          {"effective_bits", optional_json(effective_bits(usage, exact_bits))}};
}

}  // namespace

Status run_generate(const Invocation& in) {
  KVANT_ASSIGN(const std::string prompt, read_prompt(in.settings));
  const int64_t context = in.settings.context;
  KVANT_ASSIGN(const OpenModel open, open_model(in, {{in.settings.kv}, false, context}));
  const CachePlanChoice& choice = open.caches.front();
  KVANT_ASSIGN(std::vector<int32_t> tokens, prompt_tokens(in, *open.model, prompt));
  if (context == 0) {
    const int64_t most = static_cast<int64_t>(tokens.size()) + in.settings.max_tokens;
    KVANT_TRY(
        check_cache_memory(in, open.caches, std::min(most, open.model->info().max_positions)));
  }
  announce(in, open);
  note_bad_utf8(prompt, "the prompt");
  note_idle_sampling(in.settings);
  KVANT_ASSIGN(const std::unique_ptr<KvCache> cache,
               KvCache::create(choice.options, *open.threads));
  Engine engine(*open.model, *cache,
                {.chunk = static_cast<int>(in.settings.chunk), .context = context});

  GenerationRequest request = make_request(in.settings, std::move(tokens));
  request.session = engine.open_session();  // keeps the pages until their size is printed
  const Show show = takes_output(in.settings.json) ? Show::kNo : Show::kYes;
  KVANT_ASSIGN(const Answer answer,
               run_request(engine, std::move(request), show, [] { return false; }));
  const CacheUsage usage = cache->usage();
  note("{}\n", describe(answer, usage, choice.exact_bits()));
  if (!in.settings.json.empty()) {
    Json json = run_facts(in, open);
    json["kv"] = choice.name;
    json.update(formats_json(choice));
    json.update(answer_json(answer, usage, choice.exact_bits()));
    KVANT_TRY(write_json(in.settings.json, json));
  }
  return {};
}

}  // namespace kvant::cli
