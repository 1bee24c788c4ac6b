// kvant bench attention: how fast attention runs on a cache in every format, beside ggml's own.

#include <fmt/format.h>

#include <span>

#include "cli/command.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "evaluate/attention_bench.h"
#include "simd/cpu.h"

namespace kvant::cli {
namespace {

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

Json report_json(const Invocation& in, const AttentionReport& report,
                 std::span<const FormatPair> pairs, int threads) {
  const Settings& s = in.settings;
  Json json = {{"heads", s.heads},
               {"kv_heads", s.kv_heads},
               {"dim", s.dim},
               {"tokens", s.tokens},
               {"queries", s.queries},
               {"layers", s.layers},
               {"repeats", s.repeats},
               {"threads", threads},
               {"isa", isa_name(active_isa())},
               {"read_bandwidth", report.bandwidth},
               {"notes", report.notes}};
  json["rows"] = Json::array();
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const AttentionTiming& row = report.rows[i];
    json["rows"].push_back({{"format", row.name},
                            {"k_format", i < pairs.size() ? Json(pairs[i].key) : Json()},
                            {"v_format", i < pairs.size() ? Json(pairs[i].value) : Json()},
                            {"ms", row.ms},
                            {"spread", row.spread},
                            {"bytes", row.bytes},
                            {"bandwidth_share", row.bandwidth_share},
                            {"error", row.error}});
  }
  return json;
}

}  // namespace

Status run_bench(const Invocation& in) {
  const Settings& s = in.settings;
  if (in.model != "attention")
    return invalid_argument(fmt::format("{} can't be timed; wanted attention", in.model));
  if (s.heads % s.kv_heads != 0) {
    return invalid_argument(
        fmt::format("--heads {} isn't a multiple of --kv-heads {}", s.heads, s.kv_heads));
  }
  KVANT_ASSIGN(const std::vector<FormatPair> pairs, bench_pairs(s));
  ThreadPool threads(num_threads(s));
  const AttentionShape shape{.heads = static_cast<int>(s.heads),
                             .kv_heads = static_cast<int>(s.kv_heads),
                             .dim = static_cast<int>(s.dim),
                             .tokens = static_cast<int>(s.tokens),
                             .queries = static_cast<int>(s.queries),
                             .layers = static_cast<int>(s.layers),
                             .sinks = static_cast<int>(s.sinks),
                             .exact_window = static_cast<int>(s.exact_window),
                             .rotation_seed = static_cast<uint64_t>(s.rotation_seed)};
  AttentionReport report;
  {
    Progress progress("timing attention");
    KVANT_ASSIGN(report, bench_attention(shape, pairs, !s.no_peers, static_cast<int>(s.repeats),
                                         threads, [&](double share) { progress.update(share); }));
  }
  name_rows(report, split_items(s.kv));
  fmt::print(
      stderr,
      "attention of {}, {} on {} of {} channels, {} tokens cached; {}, {}; memory reads {}/s\n",
      counted(s.queries, "query token"), counted(s.heads, "head"), counted(s.kv_heads, "KV head"),
      s.dim, s.tokens, counted(threads.num_threads(), "thread"), isa_name(active_isa()),
      human_bytes(report.bandwidth));
  if (!report.notes.empty()) fmt::print(stderr, "note     {}\n", report.notes);
  if (!s.json.empty())
    KVANT_TRY(write_json(s.json, report_json(in, report, pairs, threads.num_threads())));
  return takes_output(s.json) ? Status() : write_text("-", render(report));
}

}  // namespace kvant::cli
