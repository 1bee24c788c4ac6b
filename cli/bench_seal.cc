// kvant bench seal: how fast rows get into a cache, format by format.

#include <fmt/format.h>

#include "cli/bench.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "evaluate/seal_bench.h"
#include "simd/cpu.h"

namespace kvant::cli {
namespace {

// Every format of the registry, beside BF16 where it serves one side alone; those that can't serve
// heads of `dim` channels are left out.
std::vector<FormatPair> registered_pairs(int dim) {
  std::vector<FormatPair> pairs;
  for (const FormatInfo& format : all_formats()) {
    const bool key = format.for_keys && sealed_bits(format, Side::kKey, dim).ok();
    const bool value = format.for_values && sealed_bits(format, Side::kValue, dim).ok();
    if (!key && !value) continue;
    pairs.push_back({key ? format.name : "bf16", value ? format.name : "bf16"});
  }
  return pairs;
}

// A pair is held to a rate if it seals something, all of it scalar.
bool is_scalar_pair(const FormatPair& pair) {
  const FormatInfo *key = *find_format(pair.key), *value = *find_format(pair.value);
  if (key->exact && value->exact) return false;
  return (key->exact || is_scalar(*key)) && (value->exact || is_scalar(*value));
}

bool reached(const SealTiming& t) {
  const bool fast = t.key_rate.value_or(kWantedSealRate) >= kWantedSealRate &&
                    t.value_rate.value_or(kWantedSealRate) >= kWantedSealRate;
  return t.decode_share < kWantedSealShare && (fast || !is_scalar_pair(t.pair));
}

std::string render(std::span<const SealTiming> rows) {
  const auto rate = [](std::optional<double> r) {
    return r ? fmt::format("{:.2f} GB/s", *r * 1e-9) : std::string("exact");
  };
  Table table({{"format", true},
               {"K"},
               {"V"},
               {"spread"},
               {"prefill"},
               {"per step"},
               {"of decode"},
               {"wanted", true},
               {"reached"}});
  for (const SealTiming& t : rows) {
    const bool is_reached = reached(t);
    table.add_row({{t.pair.name(), Color::kBold},
                   {rate(t.key_rate)},
                   {rate(t.value_rate)},
                   {fmt::format("{:.0f} %", 100 * t.spread)},
                   {rate(t.append_rate)},
                   {fmt::format("{:.4f} ms", t.append_ms)},
                   {fmt::format("{:.1f} %", 100 * t.decode_share)},
                   {is_scalar_pair(t.pair) ? "2 GB/s, 3 %" : "3 %"},
                   {is_reached ? "yes" : "no", is_reached ? Color::kGreen : Color::kRed}});
  }
  return table.render(has_colors(stdout));
}

Json report_json(const Settings& s, const AttentionShape& shape, int threads,
                 std::span<const SealTiming> rows) {
  Json json = {{"heads", s.heads},
               {"kv_heads", s.kv_heads},
               {"dim", s.dim},
               {"tokens", shape.tokens[0]},
               {"repeats", s.repeats},
               {"threads", threads},
               {"isa", isa_name(active_isa())}};
  json["rows"] = Json::array();
  for (const SealTiming& t : rows) {
    json["rows"].push_back({{"format", t.pair.name()},
                            {"k_format", t.pair.key},
                            {"v_format", t.pair.value},
                            {"scalar", is_scalar_pair(t.pair)},
                            {"k_bytes_per_second", optional_json(t.key_rate)},
                            {"v_bytes_per_second", optional_json(t.value_rate)},
                            {"spread", t.spread},
                            {"prefill_bytes_per_second", t.append_rate},
                            {"append_ms", t.append_ms},
                            {"decode_share", t.decode_share},
                            {"reached", reached(t)}});
  }
  return json;
}

}  // namespace

Status bench_seal_command(const Invocation& in) {
  const Settings& s = in.settings;
  for (const char* of_attention : {"targets", "only", "queries", "layers"}) {
    if (s.is_given(of_attention))
      return invalid_argument(fmt::format("--{} is for kvant bench attention", of_attention));
  }
  KVANT_ASSIGN(const AttentionShape shape, bench_shape(s));
  if (shape.tokens.size() != 1)
    return invalid_argument(fmt::format("--tokens {}: wanted one sequence", s.token_counts));
  std::vector<FormatPair> pairs = registered_pairs(shape.dim);
  if (s.is_given("kv")) {
    KVANT_ASSIGN(pairs, bench_pairs(s));
  }
  ThreadPool threads(num_threads(s));
  std::vector<SealTiming> rows;
  {
    Progress progress("sealing");
    for (const FormatPair& pair : pairs) {
      KVANT_ASSIGN(SealTiming row, bench_seal(pair, shape, static_cast<int>(s.repeats), threads));
      rows.push_back(std::move(row));
      progress.update(static_cast<double>(rows.size()) / static_cast<double>(pairs.size()));
    }
  }
  note(
      "rows of BF16 into {} of {} channels; encoders on one thread, a prefill and decode "
      "steps behind {} tokens on {}; {}\n",
      counted(s.kv_heads, "KV head"), s.dim, s.token_counts, threads.num_threads(),
      isa_name(active_isa()));
  if (!s.json.empty())
    KVANT_TRY(write_json(s.json, report_json(s, shape, threads.num_threads(), rows)));
  return takes_output(s.json) ? Status() : write_text("-", render(rows));
}

}  // namespace kvant::cli
