// kvant sensitivity: which layers and heads a format hurts, and which format each layer should
// have.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/calibration_use.h"
#include "cli/command.h"
#include "cli/open_model.h"
#include "cli/sensitivity_file.h"
#include "cli/sensitivity_report.h"
#include "cli/side_bits.h"
#include "cli/terminal.h"
#include "cli/text_input.h"
#include "evaluate/attention_error.h"
#include "evaluate/read_share.h"
#include "evaluate/sensitivity.h"
#include "files/digest.h"
#include "formats/names.h"

namespace kvant::cli {
namespace {

// What was measured of one format.
struct Candidate {
  const CachePlanChoice* choice = nullptr;
  AttentionErrors errors;
  std::vector<SeriesSummary> harms;  // per layer, of it alone
  std::vector<uint64_t> page_bytes;  // per layer
  double rank_correlation = 0;       // of output errors and harms

  const CacheLayer& layer(size_t l) const { return choice->options.layers[l]; }
};

bool has_pages(const CacheLayer& layer) { return layer.num_kv_heads > 0 && layer.shares < 0; }

// A choice of formats for all layers, run as a whole.
struct Mix {
  std::string name;           // of the uniform one: its format
  std::string kv, kv_layers;  // what to type
  CacheOptions options;
  double sealed_bits = 0;
  double expected_kld = 0;  // the sum of its layers' own
  EvaluationResult result;
};

// One token of K and V, in all of some layers.
struct TokenSize {
  double elements = 0;
  double bytes = 0;  // sealed
  double bits() const { return elements > 0 ? 8 * bytes / elements : 0; }
};

Result<TokenSize> token_size(std::span<const CacheLayer> layers) {
  KVANT_ASSIGN(const SideBits key, side_bits(layers, Side::kKey));
  KVANT_ASSIGN(const SideBits value, side_bits(layers, Side::kValue));
  return TokenSize{key.elements + value.elements, key.bytes_per_token + value.bytes_per_token};
}

Result<std::vector<uint64_t>> page_bytes_of(const CacheOptions& options) {
  std::vector<uint64_t> bytes;
  for (const CacheLayer& layer : options.layers) {
    KVANT_ASSIGN(const TokenSize token, token_size({&layer, 1}));
    bytes.push_back(static_cast<uint64_t>(token.bytes * kPageTokens + 0.5));
  }
  return bytes;
}

// invalid_argument where the text is over before a query reads a sealed page of any format.
Status check_pages_are_read(const OpenModel& open, const WindowedText& text, const Settings& s) {
  for (const CachePlanChoice& choice : open.caches) {
    KVANT_ASSIGN(const ReadShare share, count_reads(choice.options, 0, text.context));
    if (share.sealed > 0) return {};
  }
  return invalid_argument(
      fmt::format("no query of {} reads a quantized page with --kv {}, --sinks {} and "
                  "--exact-window {}; wanted a longer --context",
                  counted(text.context, "token"), s.kv, s.sinks, s.exact_window));
}

EvaluationOptions evaluation_options(const Settings& s, Progress& progress) {
  EvaluationOptions options;
  options.chunk = static_cast<int>(s.chunk);
  options.invariant = s.invariant;
  options.windows = s.windows;
  options.progress = [&progress](double share) { progress.update(share); };
  return options;
}

// Appends output errors and harms of the layers that a format makes a difference to.
void collect_pairs(const Candidate& candidate, std::vector<double>& errors,
                   std::vector<double>& harms) {
  for (size_t l = 0; l < candidate.harms.size(); ++l) {
    if (!has_pages(candidate.layer(l)) || candidate.errors.layers[l].outputs == 0) continue;
    errors.push_back(candidate.errors.layers[l].outputs);
    harms.push_back(candidate.harms[l].mean);
  }
}

Result<std::vector<Candidate>> measure(const Invocation& in, const OpenModel& open,
                                       const WindowedText& text) {
  const Settings& s = in.settings;
  std::vector<Candidate> candidates;
  std::vector<EvaluatedRun> runs;
  const auto first_window = std::span(text.ids).first(static_cast<size_t>(text.context));
  KVANT_ASSIGN(const AttentionTrace trace, trace_attention(*open.model, *open.threads, first_window,
                                                           static_cast<int>(s.chunk)));
  for (const CachePlanChoice& choice : open.caches) {
    Candidate& candidate = candidates.emplace_back();
    candidate.choice = &choice;
    KVANT_ASSIGN(candidate.errors, attention_errors(trace, choice.options, *open.threads));
    KVANT_ASSIGN(candidate.page_bytes, page_bytes_of(choice.options));
    runs.push_back({choice.name, choice.options});
  }
  Progress progress("one layer at a time");
  KVANT_ASSIGN(auto harms, harms_by_layer(*open.model, *open.threads, text.ids, runs,
                                          evaluation_options(s, progress)));
  for (size_t f = 0; f < candidates.size(); ++f) {
    candidates[f].harms = std::move(harms[f]);
    std::vector<double> errors, klds;
    collect_pairs(candidates[f], errors, klds);
    candidates[f].rank_correlation = rank_correlation(errors, klds);
  }
  return candidates;
}

// Over all formats and layers at once.
double overall_correlation(std::span<const Candidate> candidates) {
  std::vector<double> errors, klds;
  for (const Candidate& candidate : candidates) collect_pairs(candidate, errors, klds);
  return rank_correlation(errors, klds);
}

// The mix as a user types it: the format of most layers, and the others by number.
void name_mix(std::span<const Candidate> candidates, std::span<const int> formats, Mix& mix) {
  std::map<int, std::vector<int>> layers;  // format → those that have it
  for (size_t l = 0; l < formats.size(); ++l) {
    if (has_pages(candidates[0].layer(l))) layers[formats[l]].push_back(static_cast<int>(l));
  }
  const auto most = std::max_element(
      layers.begin(), layers.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  const auto name = [&](int f) { return candidates[static_cast<size_t>(f)].choice->name; };
  mix.kv = name(most->first);
  for (const auto& [format, where] : layers) {
    if (format == most->first) continue;
    mix.kv_layers +=
        fmt::format("{}{}={}", mix.kv_layers.empty() ? "" : ";", index_ranges(where), name(format));
  }
}

// invalid_argument where no mix is within the budget.
Result<Mix> best_mix(std::span<const Candidate> candidates, double budget_bits) {
  const size_t num_layers = candidates[0].harms.size();
  std::vector<std::vector<LayerCost>> costs(num_layers);
  for (size_t l = 0; l < num_layers; ++l) {
    for (const Candidate& candidate : candidates)
      costs[l].push_back({candidate.page_bytes[l], candidate.harms[l].mean});
  }
  KVANT_ASSIGN(const TokenSize token, token_size(candidates[0].choice->options.layers));
  const double elements = token.elements;
  const double budget = budget_bits * elements * kPageTokens / 8;
  const std::vector<int> formats =
      least_harmful_mix(costs, static_cast<uint64_t>(budget * (1 + 1e-12)));
  if (formats.empty()) {
    double least = 0;
    for (const std::vector<LayerCost>& layer : costs) {
      least += static_cast<double>(
          std::min_element(layer.begin(), layer.end(), [](const auto& a, const auto& b) {
            return a.bytes < b.bytes;
          })->bytes);
    }
    return invalid_argument(
        fmt::format("--budget {:g}: the formats of --kv take at least {:.2f} bits per element",
                    budget_bits, 8 * least / kPageTokens / elements));
  }
  Mix mix;
  mix.name = "mix";
  mix.options = candidates[0].choice->options;
  for (size_t l = 0; l < num_layers; ++l) {
    const auto f = static_cast<size_t>(formats[l]);
    mix.options.layers[l] = candidates[f].layer(l);
    mix.expected_kld += costs[l][f].harm;
  }
  name_mix(candidates, formats, mix);
  return mix;
}

// Every format everywhere, and the mix last.
Result<std::vector<Mix>> run_mixes(const Invocation& in, const OpenModel& open,
                                   const WindowedText& text, std::span<const Candidate> candidates,
                                   Mix best) {
  std::vector<Mix> mixes;
  for (const Candidate& candidate : candidates) {
    Mix& mix = mixes.emplace_back();
    mix.name = mix.kv = candidate.choice->name;
    mix.options = candidate.choice->options;
    for (const SeriesSummary& harm : candidate.harms) mix.expected_kld += harm.mean;
  }
  mixes.push_back(std::move(best));
  std::vector<EvaluatedRun> runs;
  for (Mix& mix : mixes) {
    KVANT_ASSIGN(const TokenSize token, token_size(mix.options.layers));
    mix.sealed_bits = token.bits();
    runs.push_back({mix.name, mix.options});
  }
  Progress progress("all layers at once");
  KVANT_ASSIGN(std::vector<EvaluationResult> results,
               evaluate(*open.model, *open.threads, text.ids, runs,
                        evaluation_options(in.settings, progress)));
  for (size_t i = 0; i < mixes.size(); ++i) mixes[i].result = std::move(results[i]);
  return mixes;
}

std::string layer_kind(const CacheLayer& layer) { return layer.window > 0 ? "sliding" : "full"; }

std::vector<std::string> layer_kinds(const Candidate& candidate) {
  std::vector<std::string> kinds;
  for (const CacheLayer& layer : candidate.choice->options.layers)
    kinds.push_back(layer_kind(layer));
  return kinds;
}

std::string mix_table(std::span<const Mix> mixes, bool colored) {
  Table table({{"everywhere", true}, {"sealed bits"}, {"KLD"}, {"P99"}, {"sum of layers"}});
  for (const Mix& mix : mixes) {
    table.add_row({{mix.name, Color::kBold},
                   {fmt::format("{:.2f}", mix.sealed_bits)},
                   {short_number(mix.result.kld.mean)},
                   {short_number(mix.result.kld.p99)},
                   {short_number(mix.expected_kld)}});
  }
  return table.render(colored);
}

FormatSensitivities format_sensitivities(const Candidate& candidate) {
  FormatSensitivities out{.format = candidate.choice->name, .layers = {}};
  for (size_t l = 0; l < candidate.harms.size(); ++l) {
    if (!has_pages(candidate.layer(l))) continue;
    const AttentionError& error = candidate.errors.layers[l];
    LayerSensitivity& layer = out.layers.emplace_back();
    layer = {.layer = static_cast<int>(l),
             .scores = error.scores,
             .outputs = error.outputs,
             .kld = candidate.harms[l].mean,
             .kld_error = candidate.harms[l].standard_error,
             .heads = {}};
    for (const AttentionError& head : candidate.errors.heads[l])
      layer.heads.push_back({head.scores, head.outputs});
  }
  return out;
}

std::string command_line(const Invocation& in) {
  const Settings& s = in.settings;
  std::string out = fmt::format("kvant sensitivity {} --kv {} --budget {:g} --context {}", in.model,
                                s.kv, s.budget, s.context);
  const std::pair<std::string_view, std::string> texts[] = {
      {"windows", s.windows > 1 ? std::to_string(s.windows) : ""},
      {"text", s.text_file},
      {"ids-file", s.ids_file},
      {"calibration", s.calibration},
      {"sinks", s.is_given("sinks") ? std::to_string(s.sinks) : ""},
      {"exact-window", s.is_given("exact-window") ? std::to_string(s.exact_window) : ""},
      {"weights", s.is_given("weights") ? s.weights : ""}};
  for (const auto& [name, value] : texts) {
    if (!value.empty()) out += fmt::format(" --{} {}", name, value);
  }
  return out;
}

Sensitivities sensitivities_of(const Invocation& in, const WindowedText& text,
                               std::span<const Candidate> candidates, const Mix& mix) {
  Digest digest;
  digest.add(std::as_bytes(std::span(text.ids)));
  Sensitivities out{.data = digest.hex(),
                    .command = command_line(in),
                    .tokens = static_cast<int64_t>(text.ids.size()),
                    .formats = {},
                    .proposal = {.kv = mix.kv,
                                 .kv_layers = mix.kv_layers,
                                 .budget = in.settings.budget,
                                 .sealed_bits = mix.sealed_bits,
                                 .kld = mix.result.kld.mean,
                                 .kld_error = mix.result.kld.standard_error}};
  for (const Candidate& candidate : candidates)
    out.formats.push_back(format_sensitivities(candidate));
  return out;
}

std::string render(const Sensitivities& sensitivities, std::span<const Candidate> candidates,
                   std::span<const Mix> mixes, bool per_head) {
  const bool colored = has_colors(stdout);
  std::string out = sensitivity_table(sensitivities, per_head, layer_kinds(candidates[0]), colored);
  std::string ranks;
  for (const Candidate& c : candidates)
    ranks += fmt::format("{} {:.2f}, ", c.choice->name, c.rank_correlation);
  out += paint(fmt::format("errors are relative; ranks of output error and KLD agree (Spearman): "
                           "{}all {:.2f}\n\n",
                           ranks, overall_correlation(candidates)),
               Color::kDim, colored);
  out += mix_table(mixes, colored);
  const ProposedMix& mix = sensitivities.proposal;
  out += fmt::format("mix of {:.2f} bits (--budget {:g}): {}\n", mix.sealed_bits, mix.budget,
                     mix_options(mix));
  return out;
}

Json error_json(const AttentionError& error) {
  return {{"scores", error.scores}, {"outputs", error.outputs}};
}

Json candidate_json(const Candidate& c) {
  Json layers = Json::array();
  for (size_t l = 0; l < c.harms.size(); ++l) {
    const CacheLayer& layer = c.layer(l);
    if (!has_pages(layer)) continue;
    Json heads = Json::array();
    for (const AttentionError& head : c.errors.heads[l]) heads.push_back(error_json(head));
    layers.push_back({{"layer", l},
                      {"kind", layer_kind(layer)},
                      {"k_format", layer.formats.key},
                      {"v_format", layer.formats.value},
                      {"page_bytes", c.page_bytes[l]},
                      {"scores", c.errors.layers[l].scores},
                      {"outputs", c.errors.layers[l].outputs},
                      {"kld", c.harms[l].mean},
                      {"kld_error", c.harms[l].standard_error},
                      {"heads", heads}});
  }
  return {{"format", c.choice->name},
          {"rank_correlation", c.rank_correlation},
          {"sensitive_layers", sensitive_layers(c.errors)},
          {"layers", layers}};
}

Json mix_json(const Mix& mix) {
  return {{"name", mix.name},
          {"kv", mix.kv},
          {"kv_layers", mix.kv_layers},
          {"sealed_bits", mix.sealed_bits},
          {"kld", mix.result.kld.mean},
          {"kld_error", mix.result.kld.standard_error},
          {"kld_p99", mix.result.kld.p99},
          {"top1", mix.result.top1},
          {"sum_of_layers", mix.expected_kld}};
}

}  // namespace

Status run_sensitivity(const Invocation& in) {
  const Settings& s = in.settings;
  KVANT_ASSIGN(TextInput input, TextInput::open(s));
  KVANT_ASSIGN(const OpenModel open, open_model(in, {split_items(s.kv), true, s.context}));
  KVANT_ASSIGN(const WindowedText text, read_windows(s, input, *open.model));
  announce(in, open);
  note_overlap(open.calibration, input.used_text());
  KVANT_TRY(check_pages_are_read(open, text, s));
  SensitivityFile file;
  KVANT_TRY(file.prepare(in, open));
  KVANT_ASSIGN(const std::vector<Candidate> candidates, measure(in, open, text));
  KVANT_ASSIGN(Mix best, best_mix(candidates, s.budget));
  KVANT_ASSIGN(const std::vector<Mix> mixes,
               run_mixes(in, open, text, candidates, std::move(best)));
  const Sensitivities sensitivities = sensitivities_of(in, text, candidates, mixes.back());
  KVANT_TRY(file.write(sensitivities));
  if (!takes_output(s.json)) {
    std::string out = render(sensitivities, candidates, mixes, s.per_head);
    if (!file.path().empty())
      out += fmt::format("{} written; kvant inspect lists it\n", file.path());
    KVANT_TRY(write_text("-", out));
  }
  if (s.json.empty()) return {};
  Json json = run_facts(in, open);
  json["text"] = input.source();
  json["context"] = text.context;
  json["windows"] = s.windows;
  json["budget"] = s.budget;
  json["path"] = file.path().empty() ? Json() : Json(file.path());
  json["formats"] = Json::array();
  for (const Candidate& candidate : candidates)
    json["formats"].push_back(candidate_json(candidate));
  json["rank_correlation"] = overall_correlation(candidates);
  json["uniform"] = Json::array();
  for (const Mix& mix : std::span(mixes).first(candidates.size()))
    json["uniform"].push_back(mix_json(mix));
  json["proposal"] = mix_json(mixes.back());
  return write_json(s.json, json);
}

}  // namespace kvant::cli
