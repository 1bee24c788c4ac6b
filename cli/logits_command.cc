// kvant logits: the logits of every token, as a NumPy file, for checking against other engines.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/command.h"
#include "cli/npy.h"
#include "cli/open_model.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "cli/text_input.h"

namespace kvant::cli {
namespace {

Result<std::vector<int32_t>> input_tokens(const Settings& s, const Model& model) {
  std::vector<int32_t> ids;
  if (s.is_given("prompt") || s.is_given("prompt-file")) {
    KVANT_ASSIGN(const std::string prompt, read_prompt(s));
    KVANT_ASSIGN(ids, text_tokens(model.tokenizer(), prompt));
    note_bad_utf8(prompt, "the prompt");
    if (ids.empty()) return invalid_argument("the prompt has no tokens");
  } else {
    KVANT_ASSIGN(ids, s.is_given("ids-file") ? read_ids(s.ids_file) : parse_ids(s.ids));
  }
  KVANT_TRY(check_ids(ids, model.info()));
  if (static_cast<int64_t>(ids.size()) > model.info().max_positions) {
    return invalid_argument(fmt::format("{} tokens were given, the model takes {}", ids.size(),
                                        model.info().max_positions));
  }
  return ids;
}

// `first`: the token of the first row, for the message.
Status check_finite(std::span<const float> logits, size_t vocab, size_t first) {
  const auto odd =
      std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  if (odd == logits.end()) return {};
  const auto at = static_cast<size_t>(odd - logits.begin());
  return internal_error(fmt::format("the logit of id {} at token {} is {}; wanted finite numbers",
                                    at % vocab, first + at / vocab, *odd));
}

// Logits of the `count` rows of hidden states that begin at a page boundary, full blocks by the
// many-row path. `first`: the token of the first of them.
Status write_rows(const Invocation& in, Model& model, const std::vector<float>& hidden,
                  size_t first, size_t count, NpyWriter& out) {
  const auto hidden_size = static_cast<size_t>(model.info().hidden_size);
  const auto vocab = static_cast<size_t>(model.info().vocab_size);
  std::vector<float> logits(kPageTokens * vocab);
  for (size_t row = 0; row < count; row += kPageTokens) {
    const size_t rows = std::min<size_t>(kPageTokens, count - row);
    const bool block = rows == kPageTokens && !in.settings.invariant;
    KVANT_TRY(model.logits(hidden.data() + row * hidden_size, static_cast<int>(rows),
                           block ? Model::Dense::kBlock : Model::Dense::kRow, logits.data()));
    const std::span<const float> done = std::span(logits).first(rows * vocab);
    KVANT_TRY(check_finite(done, vocab, first + row));
    KVANT_TRY(out.write(done));
  }
  return {};
}

Status check_input(const Settings& s) {
  const int given =
      s.is_given("ids") + s.is_given("ids-file") + s.is_given("prompt") + s.is_given("prompt-file");
  if (given != 1) {
    return invalid_argument(fmt::format(
        "{} inputs were given, wanted one of --ids, --ids-file, --prompt and --prompt-file",
        given));
  }
  if (s.out.empty()) return invalid_argument("there is no output; wanted --out FILE.npy");
  return s.is_given("ids") ? parse_ids(s.ids).status() : Status();
}

}  // namespace

Status run_logits(const Invocation& in) {
  KVANT_TRY(check_input(in.settings));
  // The number of ids, where they are given as such, is known before the model is.
  const int64_t count =
      in.settings.is_given("ids") ? static_cast<int64_t>(parse_ids(in.settings.ids)->size()) : 0;
  KVANT_ASSIGN(const OpenModel open, open_model(in, {{in.settings.kv}, false, count}));
  Model& model = *open.model;
  const CachePlanChoice& choice = open.caches.front();
  KVANT_ASSIGN(const std::vector<int32_t> ids, input_tokens(in.settings, model));
  if (count == 0) KVANT_TRY(check_cache_memory(in, open.caches, static_cast<int64_t>(ids.size())));
  announce(in, open);
  KVANT_ASSIGN(const std::unique_ptr<KvCache> cache,
               KvCache::create(choice.options, *open.threads));
  KVANT_ASSIGN(const SequenceId sequence, cache->create_sequence());
  NpyWriter out(in.settings.out, ids.size(), static_cast<size_t>(model.info().vocab_size));
  const auto chunk = static_cast<size_t>(in.settings.chunk);
  std::vector<float> hidden(std::min(chunk, ids.size()) *
                            static_cast<size_t>(model.info().hidden_size));
  Progress progress("logits");
  for (size_t first = 0; first < ids.size(); first += chunk) {
    const size_t count = std::min(chunk, ids.size() - first);
    const ForwardItem item{sequence, std::span(ids).subspan(first, count)};
    KVANT_TRY(model.forward(*cache, {&item, 1}, hidden.data()));
    KVANT_TRY(write_rows(in, model, hidden, first, count, out));
    progress.update(static_cast<double>(first + count) / static_cast<double>(ids.size()));
  }
  KVANT_TRY(out.finish());
  if (in.settings.json.empty()) return {};
  Json json = run_facts(in, open);
  json.update({{"kv", choice.name},
               {"ids", ids},
               {"shape", {ids.size(), model.info().vocab_size}},
               {"out", in.settings.out}});
  json.update(formats_json(choice));
  return write_json(in.settings.json, json);
}

}  // namespace kvant::cli
