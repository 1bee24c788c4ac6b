// kvant bench WHAT: attention by formats and shape, or by targets; and sealing.

#include <fmt/format.h>

#include "cli/bench.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "simd/cpu.h"

namespace kvant::cli {
namespace {

struct Bench {
  std::string_view name;
  Status (*run)(const Invocation&);
};
constexpr Bench kBenches[] = {{"attention", bench_attention_command}, {"seal", bench_seal_command}};

// Below, pages of the start, which stay exact, are all there is.
constexpr int64_t kFewestTokens = 65, kMostTokens = 1 << 24;

// Our rows come first, in the order asked for; ggml's after them have no formats of ours.
void name_rows(AttentionReport& report, const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) report.rows[i].name = names[i];
}

std::string render(const AttentionReport& report) {
  Table table({{"format", true}, {"time"}, {"spread"}, {"bytes"}, {"bandwidth"}, {"error"}});
  for (const AttentionTiming& row : report.rows) {
    table.add_row({{row.name, Color::kBold},
                   {fmt::format("{:.3f} ms", row.ms)},
                   {fmt::format("{:.0f} %", 100 * row.spread)},
                   {human_bytes(row.bytes)},
                   {fmt::format("{:.0f} %", 100 * row.bandwidth_share)},
                   {short_number(row.error)}});
  }
  return table.render(has_colors(stdout));
}

Json report_json(const Settings& s, const AttentionShape& shape, const AttentionReport& report,
                 std::span<const FormatPair> pairs) {
  Json json = {{"heads", s.heads},
               {"kv_heads", s.kv_heads},
               {"dim", s.dim},
               {"tokens", shape.tokens.size() == 1 ? Json(shape.tokens[0]) : Json(shape.tokens)},
               {"queries", s.queries},
               {"layers", s.layers},
               {"repeats", s.repeats},
               {"threads", report.bandwidths[0].threads},
               {"isa", isa_name(active_isa())},
               {"read_bandwidth", report.bandwidths[0].bytes_per_second},
               {"notes", report.notes}};
  json["rows"] = Json::array();
  for (size_t i = 0; i < report.rows.size(); ++i) {
    Json row = timing_json(report.rows[i]);
    row["k_format"] = i < pairs.size() ? Json(pairs[i].key) : Json();
    row["v_format"] = i < pairs.size() ? Json(pairs[i].value) : Json();
    json["rows"].push_back(std::move(row));
  }
  return json;
}

}  // namespace

Json timing_json(const AttentionTiming& row) {
  return {{"format", row.name},
          {"ms", row.ms},
          {"spread", row.spread},
          {"bytes", row.bytes},
          {"bandwidth_share", row.bandwidth_share},
          {"error", row.error}};
}

Result<std::vector<FormatPair>> bench_pairs(const Settings& settings) {
  std::vector<FormatPair> pairs;
  for (const std::string& name : split_items(settings.kv)) {
    KVANT_ASSIGN(FormatPair pair,
                 parse_format_pair(name, {.value_dim = static_cast<int>(settings.dim)}));
    KVANT_ASSIGN(const FormatInfo* key, find_format(pair.key));
    KVANT_ASSIGN(const FormatInfo* value, find_format(pair.value));
    KVANT_TRY(sealed_bits(*key, Side::kKey, static_cast<int>(settings.dim)).status());
    KVANT_TRY(sealed_bits(*value, Side::kValue, static_cast<int>(settings.dim)).status());
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

Result<AttentionShape> bench_shape(const Settings& s) {
  if (s.heads % s.kv_heads != 0) {
    return invalid_argument(
        fmt::format("--heads {} isn't a multiple of --kv-heads {}", s.heads, s.kv_heads));
  }
  AttentionShape shape{.heads = static_cast<int>(s.heads),
                       .kv_heads = static_cast<int>(s.kv_heads),
                       .dim = static_cast<int>(s.dim),
                       .tokens = {},
                       .queries = static_cast<int>(s.queries),
                       .layers = static_cast<int>(s.layers),
                       .sinks = static_cast<int>(s.sinks),
                       .exact_window = static_cast<int>(s.exact_window),
                       .rotation_seed = static_cast<uint64_t>(s.rotation_seed)};
  for (const std::string& item : split_items(s.token_counts)) {
    KVANT_ASSIGN(const int64_t count, parse_count(item));
    if (count < kFewestTokens || count > kMostTokens) {
      return invalid_argument(fmt::format("--tokens {}: wanted whole numbers from {} to {}",
                                          s.token_counts, kFewestTokens, kMostTokens));
    }
    shape.tokens.push_back(static_cast<int>(count));
  }
  return shape;
}

Status bench_attention_command(const Invocation& in) {
  const Settings& s = in.settings;
  if (s.targets) return bench_targets_command(in);
  if (s.is_given("only")) return invalid_argument("--only chooses among the runs of --targets");
  KVANT_ASSIGN(const AttentionShape shape, bench_shape(s));
  KVANT_ASSIGN(const std::vector<FormatPair> pairs, bench_pairs(s));
  AttentionRequest request{
      .shape = shape, .pairs = pairs, .peers = {}, .repeats = static_cast<int>(s.repeats)};
  if (!s.no_peers && shape.tokens.size() == 1)
    request.peers.assign(all_peers().begin(), all_peers().end());
  ThreadPool threads(num_threads(s));
  ThreadPool* pools[] = {&threads};
  AttentionReport report;
  {
    Progress progress("timing attention");
    KVANT_ASSIGN(report,
                 bench_attention(request, pools, [&](double share) { progress.update(share); }));
  }
  name_rows(report, split_items(s.kv));
  note("attention of {}, {} on {} of {} channels, {} tokens cached; {}, {}; memory reads {}/s\n",
       counted(s.queries, "query token"), counted(s.heads, "head"), counted(s.kv_heads, "KV head"),
       s.dim, s.token_counts, counted(threads.num_threads(), "thread"), isa_name(active_isa()),
       human_bytes(report.bandwidths[0].bytes_per_second));
  if (!report.notes.empty()) note("note     {}\n", report.notes);
  if (!s.json.empty()) KVANT_TRY(write_json(s.json, report_json(s, shape, report, pairs)));
  return takes_output(s.json) ? Status() : write_text("-", render(report));
}

Status run_bench(const Invocation& in) {
  std::string names;
  for (const Bench& bench : kBenches) {
    if (bench.name == in.model) return bench.run(in);
    names += fmt::format("{}{}", names.empty() ? "" : " or ", bench.name);
  }
  return invalid_argument(fmt::format("{} can't be timed; wanted {}", in.model, names));
}

}  // namespace kvant::cli
