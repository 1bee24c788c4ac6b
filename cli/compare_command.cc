// kvant compare: every format on the same text, in one table, with a recommendation.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/cache_size.h"
#include "cli/calibration_use.h"
#include "cli/command.h"
#include "cli/open_model.h"
#include "cli/side_bits.h"
#include "cli/terminal.h"
#include "cli/text_input.h"
#include "cli/weak_layers.h"
#include "evaluate/lockstep.h"
#include "evaluate/recommend.h"

namespace kvant::cli {
namespace {

struct Row {
  CachePlanChoice choice;
  FormatPair pair;
  SideBits key, value;
  EvaluationResult result;

  // Effective bits of one side: sealed bytes shared out by what a sealed token takes, exact ones by
  // its elements.
  double effective(const SideBits& side) const {
    const double elements = key.elements + value.elements;
    const double bytes = key.bytes_per_token + value.bytes_per_token;
    if (result.usage.ideal_bytes == 0 || side.elements == 0) return 0;
    const double held =
        static_cast<double>(result.usage.sealed_bytes) * side.bytes_per_token / bytes +
        static_cast<double>(result.usage.exact_bytes) * side.elements / elements;
    return 8 * held /
           (static_cast<double>(result.usage.ideal_bytes) / 2 * side.elements / elements);
  }

  double both(double SideBits::*field) const {
    const double elements = key.elements + value.elements;
    return elements > 0 ? (key.*field * key.elements + value.*field * value.elements) / elements
                        : 0;
  }
  // Effective bits of both; nothing where the run was too short to say.
  std::optional<double> effective() const {
    return effective_bits(result.usage, choice.exact_bits());
  }
  std::optional<double> effective_or_none(const SideBits& side) const {
    return effective() ? std::optional(effective(side)) : std::nullopt;
  }
};

Json row_json(const Row& row, const Settings& settings) {
  const EvaluationResult& r = row.result;
  const auto speed = [&](double x) { return settings.no_speed ? Json() : Json(x); };
  Json out = {{"format", row.choice.name},
              {"k_format", row.pair.key},
              {"v_format", row.pair.value},
              {"nominal_bits", row.both(&SideBits::nominal)},
              {"sealed_bits", row.both(&SideBits::sealed)},
              {"effective_bits", optional_json(row.effective())},
              {"bytes_per_token", row.key.bytes_per_token + row.value.bytes_per_token},
              {"cache_bytes", r.usage.live_bytes},
              {"prefill_tok_s", speed(r.prefill_tok_s)},
              {"decode_tok_s", optional_json(r.decode_tok_s)},
              {"perplexity", r.perplexity},
              {"kld", r.kld.mean},
              {"kld_p99", r.kld.p99},
              {"top1", r.top1},
              {"k_nominal_bits", row.key.nominal},
              {"v_nominal_bits", row.value.nominal},
              {"k_sealed_bits", row.key.sealed},
              {"v_sealed_bits", row.value.sealed},
              {"k_effective_bits", optional_json(row.effective_or_none(row.key))},
              {"v_effective_bits", optional_json(row.effective_or_none(row.value))},
              {"kld_max", r.kld.max},
              {"kld_error", r.kld.standard_error},
              {"kld_low", r.kld_interval.low},
              {"kld_high", r.kld_interval.high},
              {"top1_error", r.top1_error},
              {"nll", r.nll.mean},
              {"nll_change", r.nll_change.mean},
              {"nll_change_error", r.nll_change.standard_error},
              {"scored_tokens", r.scored_tokens},
              {"sealed_read_share", r.sealed_read_share},
              {"sealed_bytes", r.usage.sealed_bytes},
              {"exact_bytes", r.usage.exact_bytes},
              {"reserved_bytes", r.usage.reserved_bytes},
              {"workspace_bytes", r.usage.workspace_bytes},
              {"decode_spread", speed(r.decode_spread)}};
  out.update(formats_json(row.choice));
  return out;
}

Color kld_color(double value, double limit) {
  if (value <= limit / 10) return Color::kGreen;
  return value <= limit ? Color::kPlain : (value <= 10 * limit ? Color::kYellow : Color::kRed);
}

std::string render(std::span<const Row> rows, const Settings& settings, bool colored) {
  Table table({{"format", true},
               {"nominal"},
               {"sealed K/V"},
               {"effective = K/V"},
               {"B/token"},
               {"cache"},
               {"prefill"},
               {"decode"},
               {"perplexity"},
               {"KLD"},
               {"P99"},
               {"top-1"}});
  for (const Row& row : rows) {
    const EvaluationResult& r = row.result;
    table.add_row({{row.choice.name, Color::kBold},
                   {fmt::format("{:g}", row.both(&SideBits::nominal))},
                   {fmt::format("{:.2f}/{:.2f}", row.key.sealed, row.value.sealed)},
                   {row.effective() ? fmt::format("{:.2f} {:.2f}/{:.2f}", *row.effective(),
                                                  row.effective(row.key), row.effective(row.value))
                                    : "-"},
                   {fmt::format("{:.0f}", row.key.bytes_per_token + row.value.bytes_per_token)},
                   {human_bytes(static_cast<double>(r.usage.live_bytes))},
                   {settings.no_speed ? "-" : fmt::format("{:.0f} t/s", r.prefill_tok_s)},
                   {r.decode_tok_s ? fmt::format("{:.1f} t/s", *r.decode_tok_s) : "-"},
                   {fmt::format("{:.4f}", r.perplexity)},
                   {short_number(r.kld.mean), kld_color(r.kld.mean, settings.max_kld)},
                   {short_number(r.kld.p99), kld_color(r.kld.p99, settings.max_kld_p99)},
                   {fmt::format("{:.2f} %", 100 * r.top1),
                    r.top1 >= settings.min_top1 ? Color::kPlain : Color::kYellow}});
  }
  return table.render(colored);
}

// What each name stands for, under the table.
std::string legend(std::span<const Row> rows, const WindowedText& text, const Settings& settings,
                   bool colored) {
  std::string out;
  for (const Row& row : rows) {
    if (row.choice.name == row.pair.name()) continue;
    out += fmt::format("{:<8} = {}\n", row.choice.name,
                       describe_formats(row.choice.formats.effective));
  }
  if (!settings.kv_layers.empty()) {
    out += fmt::format("--kv-layers {} in every row{}\n", settings.kv_layers,
                       rows.size() > 1 ? " but bf16's, which the others are measured against" : "");
  }
  const EvaluationResult& last = rows.back().result;
  out += fmt::format(
      "{}{}, {} scored, {:.0f} % of {}'s cache reads from sealed pages; bits are per element of K "
      "and V\n",
      settings.windows > 1 ? fmt::format("{} windows of ", settings.windows) : "",
      counted(text.context, "token"), last.scored_tokens, 100 * last.sealed_read_share,
      rows.back().choice.name);
  const bool unsealed = std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return row.choice.seals() && !row.effective();
  });
  if (unsealed)
    out += "effective bits are - where no page was sealed: a longer --context shows them\n";
  if (settings.windows > 1 && !settings.no_speed)
    out += "prefill is the speed of all windows, decode that behind the last one\n";
  return paint(out, Color::kDim, colored);
}

Candidate candidate_of(const Row& row) {
  const EvaluationResult& r = row.result;
  // Before any page is sealed a format's cache is as large as BF16's; what it is for are its
  // sealed bits.
  const double bits = row.effective().value_or(row.both(&SideBits::sealed));
  return {row.choice.name,
          !row.choice.seals(),
          bits,
          r.kld.mean,
          r.kld.p99,
          r.top1,
          r.decode_tok_s.value_or(0),
          r.sealed_read_share};
}

QualityLimits limits_of(const Settings& settings) {
  return {settings.max_kld, settings.max_kld_p99, settings.min_top1};
}

Recommendation recommend_row(std::span<const Row> rows, const Settings& settings) {
  std::vector<Candidate> candidates;
  double baseline_speed = 0;
  for (const Row& row : rows) {
    if (row.pair.name() == kBaselineFormat) baseline_speed = row.result.decode_tok_s.value_or(0);
    candidates.push_back(candidate_of(row));
  }
  return recommend(candidates, limits_of(settings), baseline_speed);
}

// Of the formats that the limits refuse.
Result<std::vector<WeakLayers>> weak_layers_of(std::span<const Row> rows, const OpenModel& open,
                                               const WindowedText& text, const Settings& settings) {
  std::vector<const CachePlanChoice*> refused;
  for (const Row& row : rows) {
    const bool is_refused = !shortfall(candidate_of(row), limits_of(settings)).empty();
    if (row.choice.seals() && is_refused) refused.push_back(&row.choice);
  }
  return find_weak_layers(open, std::span(text.ids).first(static_cast<size_t>(text.context)),
                          refused, static_cast<int>(settings.chunk));
}

Json weak_layers_json(std::span<const WeakLayers> found) {
  Json json = Json::array();
  for (const WeakLayers& weak : found) {
    json.push_back({{"format", weak.format},
                    {"layers", weak.layers},
                    {"output_error", weak.error},
                    {"median_output_error", weak.median_error}});
  }
  return json;
}

Result<std::vector<Row>> measure(const Invocation& in, const OpenModel& open,
                                 std::span<const int32_t> tokens) {
  std::vector<EvaluatedRun> runs;
  for (const CachePlanChoice& choice : open.caches) runs.push_back({choice.name, choice.options});
  EvaluationOptions options;
  options.chunk = static_cast<int>(in.settings.chunk);
  options.invariant = in.settings.invariant;
  options.windows = in.settings.windows;
  // At a full context these tokens pass the model's last position: good enough to time, no more.
  options.decode_steps = in.settings.no_speed ? 0 : static_cast<int>(in.settings.decode_steps);
  Progress progress(
      fmt::format("comparing {}", counted(static_cast<int64_t>(runs.size()), "format")));
  options.progress = [&](double share) { progress.update(share); };
  KVANT_ASSIGN(std::vector<EvaluationResult> results,
               evaluate(*open.model, *open.threads, tokens, runs, options));
  std::vector<Row> rows;
  for (size_t i = 0; i < results.size(); ++i) {
    Row row;
    row.choice = open.caches[i];
    row.pair = main_pair(row.choice.formats.effective);
    KVANT_ASSIGN(row.key, side_bits(row.choice.options.layers, Side::kKey));
    KVANT_ASSIGN(row.value, side_bits(row.choice.options.layers, Side::kValue));
    row.result = std::move(results[i]);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

Status run_compare(const Invocation& in) {
  KVANT_ASSIGN(TextInput input, TextInput::open(in.settings));
  KVANT_ASSIGN(const OpenModel open,
               open_model(in, {split_items(in.settings.kv), true, in.settings.context}));
  KVANT_ASSIGN(const WindowedText text, read_windows(in.settings, input, *open.model));
  announce(in, open);
  note_overlap(open.calibration, input.used_text());
  KVANT_ASSIGN(const std::vector<Row> rows, measure(in, open, text.ids));
  const Recommendation best = recommend_row(rows, in.settings);
  KVANT_ASSIGN(const std::vector<WeakLayers> weak, weak_layers_of(rows, open, text, in.settings));

  if (!takes_output(in.settings.json) && !takes_output(in.settings.csv)) {
    const bool colored = has_colors(stdout);
    std::string out = render(rows, in.settings, colored) +
                      legend(rows, text, in.settings, colored) + best.reason + "\n";
    for (const WeakLayers& one : weak) out += describe(one) + "\n";
    KVANT_TRY(write_text("-", out));
  }
  if (!in.settings.json.empty()) {
    Json json = run_facts(in, open);
    json["context"] = text.context;
    json["windows"] = in.settings.windows;
    json["chunk"] = in.settings.chunk;
    json["text"] = input.source();
    json["rows"] = Json::array();
    for (const Row& row : rows) json["rows"].push_back(row_json(row, in.settings));
    json["recommend"] = best.name;
    json["recommend_reason"] = best.reason;
    json["weak_layers"] = weak_layers_json(weak);
    json["limits"] = {{"kld", in.settings.max_kld},
                      {"kld_p99", in.settings.max_kld_p99},
                      {"top1", in.settings.min_top1}};
    KVANT_TRY(write_json(in.settings.json, json));
  }
  if (!in.settings.csv.empty()) {
    std::vector<Json> lines;
    for (const Row& row : rows) lines.push_back(row_json(row, in.settings));
    KVANT_TRY(write_text(in.settings.csv, csv_table(lines)));
  }
  return {};
}

}  // namespace kvant::cli
