// kvant perplexity: the quality of one format on one text.

#include <fmt/format.h>

#include <cmath>

#include "cli/cache_size.h"
#include "cli/calibration_use.h"
#include "cli/command.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "cli/text_input.h"
#include "evaluate/lockstep.h"

namespace kvant::cli {
namespace {

constexpr double kTwoSided95 = 1.96;  // standard errors in a 95 % interval

struct RunFacts {
  bool baseline;
  double exact_bits;
  int64_t windows;
};

std::string render(const EvaluationResult& r, const RunFacts& run) {
  const double low = std::exp(r.nll.mean - kTwoSided95 * r.nll.standard_error);
  const double high = std::exp(r.nll.mean + kTwoSided95 * r.nll.standard_error);
  std::string out =
      fmt::format("perplexity   {:.4f}  (95 %: {:.3f} to {:.3f})\n", r.perplexity, low, high);
  if (run.baseline) {
    out += fmt::format("KLD to BF16  mean {}, P99 {}, max {}  (standard error {})\n",
                       short_number(r.kld.mean), short_number(r.kld.p99), short_number(r.kld.max),
                       short_number(r.kld.standard_error));
    out += fmt::format("top-1        {:.2f} % as BF16  (standard error {:.2f})\n", 100 * r.top1,
                       100 * r.top1_error);
    out += fmt::format("ln PPL/BF16  {:+.5f}  (standard error {})\n", r.nll_change.mean,
                       short_number(r.nll_change.standard_error));
  }
  out += fmt::format(
      "scored       {} of {} tokens{}, {:.1f} % of the cache reads from sealed pages\n",
      r.scored_tokens, r.tokens, run.windows > 1 ? fmt::format(" in {} windows", run.windows) : "",
      100 * r.sealed_read_share);
  out += fmt::format("cache        {}; {} of workspace\n", describe_size(r.usage, run.exact_bits),
                     human_bytes(static_cast<double>(r.usage.workspace_bytes)));
  out +=
      fmt::format("prefill      {:.0f} tok/s\ndigest       {:016x}\n", r.prefill_tok_s, r.digest);
  return out;
}

Json result_json(const EvaluationResult& r, const RunFacts& run) {
  Json json = {{"perplexity", r.perplexity},
               {"nll", r.nll.mean},
               {"nll_error", r.nll.standard_error},
               {"tokens", r.tokens},
               {"scored_tokens", r.scored_tokens},
               {"sealed_read_share", r.sealed_read_share},
               {"cache_bytes", r.usage.live_bytes},
               {"workspace_bytes", r.usage.workspace_bytes},
               {"effective_bits", optional_json(effective_bits(r.usage, run.exact_bits))},
               {"prefill_tok_s", r.prefill_tok_s},
               {"digest", fmt::format("{:016x}", r.digest)}};
  if (run.baseline) {
    json.update({{"kld", r.kld.mean},
                 {"kld_p99", r.kld.p99},
                 {"kld_max", r.kld.max},
                 {"kld_error", r.kld.standard_error},
                 {"top1", r.top1},
                 {"top1_error", r.top1_error},
                 {"nll_change", r.nll_change.mean},
                 {"nll_change_error", r.nll_change.standard_error}});
  }
  return json;
}

}  // namespace

Status run_perplexity(const Invocation& in) {
  KVANT_ASSIGN(TextInput input, TextInput::open(in.settings));
  const bool baseline = !in.settings.no_baseline;
  KVANT_ASSIGN(const OpenModel open,
               open_model(in, {{in.settings.kv}, baseline, in.settings.context}));
  const CachePlanChoice& choice = open.caches.front();
  KVANT_ASSIGN(const WindowedText text, read_windows(in.settings, input, *open.model));
  announce(in, open);
  note_overlap(open.calibration, input.used_text());
  const EvaluatedRun run{choice.name, choice.options};
  EvaluationOptions options;
  options.chunk = static_cast<int>(in.settings.chunk);
  options.invariant = in.settings.invariant;
  options.baseline = baseline;
  options.windows = in.settings.windows;
  std::vector<EvaluationResult> results;
  {
    Progress progress(fmt::format("perplexity {}", choice.name));
    options.progress = [&](double share) { progress.update(share); };
    KVANT_ASSIGN(results, evaluate(*open.model, *open.threads, text.ids, {&run, 1}, options));
  }
  const RunFacts facts{baseline, choice.exact_bits(), in.settings.windows};
  if (!takes_output(in.settings.json)) KVANT_TRY(write_text("-", render(results[0], facts)));
  if (in.settings.json.empty()) return {};
  Json json = run_facts(in, open);
  json["format"] = choice.name;
  json["context"] = text.context;
  json["windows"] = in.settings.windows;
  json["chunk"] = in.settings.chunk;
  json.update(result_json(results[0], facts));
  json.update(formats_json(choice));
  return write_json(in.settings.json, json);
}

}  // namespace kvant::cli
