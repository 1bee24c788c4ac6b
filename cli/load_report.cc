#include "cli/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/terminal.h"
#include "cli/wrap.h"

namespace kvant::cli {
namespace {

using load::LevelSummary;
using load::Spread;

// Arrivals that are later than this are worth a note: it is what a person may just notice.
constexpr double kWorthyLag = 0.01;

std::string time_text(double seconds) {
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return seconds < 100 ? fmt::format("{:.3g} s", seconds) : fmt::format("{:.0f} s", seconds);
}
std::string p_text(const Spread& spread, double Spread::*figure) {
  return spread.count == 0 ? "-" : time_text(spread.*figure);
}
// Three digits that count, and all that a large number has.
std::string rate_text(std::optional<double> rate) {
  if (!rate) return "-";
  return *rate < 100 ? fmt::format("{:.3g}", *rate) : fmt::format("{:.0f}", *rate);
}

struct Latency {
  std::string_view title, key;
  Spread LevelSummary::*spread;
};
constexpr Latency kLatencies[] = {{"TTFT", "ttft", &LevelSummary::ttft},
                                  {"TPOT", "tpot", &LevelSummary::tpot},
                                  {"ITL", "itl", &LevelSummary::itl},
                                  {"E2E", "e2e", &LevelSummary::e2e}};

std::string cell_name(const LoadCell& cell) {
  std::string name = cell.format.empty() ? "" : cell.format + ", ";
  if (!cell.input.empty()) name += fmt::format("prompts of {} tokens, ", cell.input);
  return name + cell.level.text();
}

std::string counts_text(const LoadCell& cell) {
  const LevelSummary& s = cell.summary;
  std::string text = fmt::format("{} in {}", counted(s.succeeded, "request"), time_text(s.seconds));
  const auto each = [&](std::optional<int64_t> tokens) {
    return fmt::format("{:.1f}", static_cast<double>(*tokens) / static_cast<double>(s.succeeded));
  };
  if (s.prompt_tokens && s.output_tokens)
    text +=
        fmt::format(", {} + {} tokens on average", each(s.prompt_tokens), each(s.output_tokens));
  if (s.cached_tokens && *s.cached_tokens > 0 && s.prompt_tokens) {
    text += fmt::format(
        ", {:.3g} % of the prompts' tokens from the server's cache",
        100 * static_cast<double>(*s.cached_tokens) / static_cast<double>(*s.prompt_tokens));
  }
  return text;
}

std::string failures_text(const LevelSummary& s) {
  std::string text = fmt::format("failed: {} (", s.failed);
  bool first = true;
  for (const auto& [name, count] : s.failures) {
    text += fmt::format("{}{} {}", first ? "" : ", ", name, count);
    first = false;
  }
  text += ")";
  if (!s.first_failure.empty()) text += fmt::format("; the first: {}", s.first_failure);
  return text;
}

void append_block(std::string& out, const LoadCell& cell, const load::Slo& slo, bool colored) {
  const LevelSummary& s = cell.summary;
  out += "\n" + paint(cell_name(cell), Color::kBold, colored) + "\n";
  append_wrapped(out, counts_text(cell), 0);
  if (s.succeeded > 0) {
    Table table({{"", true}, {"mean"}, {"P50"}, {"P95"}, {"P99"}});
    for (const Latency& latency : kLatencies) {
      const Spread& spread = s.*latency.spread;
      table.add_row({{std::string(latency.title)},
                     {p_text(spread, &Spread::mean)},
                     {p_text(spread, &Spread::p50)},
                     {p_text(spread, &Spread::p95)},
                     {p_text(spread, &Spread::p99)}});
    }
    out += table.render(colored);
  }
  std::string rates =
      fmt::format("{} requests/s, {} output tokens/s, {} tokens/s with prompts",
                  rate_text(s.request_rate), rate_text(s.output_rate), rate_text(s.total_rate));
  if (s.goodput && s.good_share) {
    rates += fmt::format("; goodput {} requests/s ({:.1f} %) under {}", rate_text(s.goodput),
                         100 * *s.good_share, slo.text);
  }
  if (cell.preemptions) rates += fmt::format("; {}", counted(*cell.preemptions, "preemption"));
  append_wrapped(out, rates, 0);
  if (s.failed > 0) append_wrapped(out, failures_text(s), 0);
}

std::string level_word(const load::Level& level) {
  return level.open_loop() ? fmt::format("{}/s", level.rate) : fmt::format("{}", level.concurrency);
}

std::string side_by_side(const LoadReport& report, bool colored) {
  const bool formats = !report.cells[0].format.empty();
  const bool inputs = std::any_of(report.cells.begin(), report.cells.end(), [&](const LoadCell& c) {
    return c.input != report.cells[0].input;
  });
  std::vector<Table::Column> columns;
  if (formats) columns.push_back({"kv", true});
  if (inputs) columns.push_back({"prompt", !formats});
  columns.push_back({"load", !formats && !inputs});
  for (const char* title : {"done", "failed", "req/s", "tok/s", "TTFT P50", "P95", "TPOT mean",
                            "ITL P50", "P95", "E2E P95"})
    columns.push_back({title});
  if (report.slo.any()) columns.push_back({"good/s"});
  Table table(std::move(columns));
  for (const LoadCell& cell : report.cells) {
    const LevelSummary& s = cell.summary;
    std::vector<Cell> row;
    if (formats) row.push_back({cell.format, Color::kBold});
    if (inputs) row.push_back({cell.input});
    row.push_back({level_word(cell.level)});
    row.push_back({fmt::format("{}", s.succeeded)});
    row.push_back({fmt::format("{}", s.failed), s.failed > 0 ? Color::kRed : Color::kPlain});
    row.push_back({rate_text(s.request_rate)});
    row.push_back({rate_text(s.output_rate)});
    row.push_back({p_text(s.ttft, &Spread::p50)});
    row.push_back({p_text(s.ttft, &Spread::p95)});
    row.push_back({p_text(s.tpot, &Spread::mean)});
    row.push_back({p_text(s.itl, &Spread::p50)});
    row.push_back({p_text(s.itl, &Spread::p95)});
    row.push_back({p_text(s.e2e, &Spread::p95)});
    if (report.slo.any()) row.push_back({rate_text(s.goodput)});
    table.add_row(std::move(row));
  }
  return "\n" + table.render(colored);
}

// Of a search only the level that it found; the others have their line in the table.
bool is_shown_whole(const LoadCell& cell, const LoadReport& report) {
  if (report.cells.size() == 1 || report.searches.empty()) return true;
  return std::any_of(report.searches.begin(), report.searches.end(), [&](const LoadSearch& search) {
    return search.format == cell.format && search.input == cell.input &&
           search.found.concurrency == cell.level.concurrency;
  });
}

// What a reader of the figures has to know, said once for all levels.
std::vector<std::string> notes_of(const LoadReport& report) {
  int64_t succeeded = 0, uncounted = 0, retokenized = 0, other_prompts = 0, cut_off = 0;
  double tokens_per_piece = 0, lag = 0;
  bool interrupted = false;
  for (const LoadCell& cell : report.cells) {
    const LevelSummary& s = cell.summary;
    succeeded += s.succeeded;
    uncounted += s.uncounted;
    retokenized += s.retokenized;
    other_prompts += s.other_prompt_count;
    cut_off += s.cut_off;
    if (std::abs(s.tokens_per_piece - 1) > std::abs(tokens_per_piece - 1) || tokens_per_piece == 0)
      tokens_per_piece = s.tokens_per_piece;
    lag = std::max(lag, cell.worst_lag_s);
    interrupted = interrupted || cell.interrupted;
  }
  std::vector<std::string> notes;
  if (uncounted > 0) {
    notes.push_back(
        fmt::format("{} of {} came without usage and there is no --tokenizer, so that "
                    "their tokens weren't counted: TPOT and rates of tokens are missing",
                    uncounted, counted(succeeded, "answer")));
  }
  if (retokenized > 0) {
    notes.push_back(
        fmt::format("the tokens of {} of {}, which came without usage, are those of "
                    "the tokenizer of {}",
                    retokenized, counted(succeeded, "answer"), report.tokenizer));
  }
  if (other_prompts > 0) {
    notes.push_back(
        fmt::format("in {} of {} the server counted another number of prompt tokens "
                    "than was asked for; its counts are in the figures",
                    other_prompts, counted(succeeded, "answer")));
  }
  if (tokens_per_piece > 0 && std::abs(tokens_per_piece - 1) > 0.02) {
    notes.push_back(
        fmt::format("the server's pieces of text hold {:.2f} tokens on average; an ITL "
                    "is the time between pieces",
                    tokens_per_piece));
  }
  if (lag > kWorthyLag)
    notes.push_back(
        fmt::format("requests were sent up to {} late by this program", time_text(lag)));
  if (interrupted && cut_off > 0)
    notes.push_back(
        fmt::format("{} under way at the interrupt aren't counted", counted(cut_off, "request")));
  return notes;
}

Json spread_json(const Spread& s) {
  if (s.count == 0) return nullptr;
  return {{"count", s.count}, {"mean", s.mean}, {"p50", s.p50}, {"p95", s.p95},
          {"p99", s.p99},     {"min", s.min},   {"max", s.max}};
}

Json count_json(std::optional<int64_t> x) { return x ? Json(*x) : Json(); }

// Seconds since the level's first request was sent.
Json request_json(const load::RequestRecord& r, int64_t begin_ns) {
  const auto seconds = [](int64_t from, int64_t to) {
    return to < 0 ? Json() : Json(static_cast<double>(to - from) / 1e9);
  };
  Json json = {{"index", r.index},
               {"counted", r.counted},
               {"outcome", load::outcome_name(r.outcome)},
               {"sent_s", seconds(begin_ns, r.sent_ns)},
               {"ttft_s", seconds(r.sent_ns, r.first_ns)},
               {"e2e_s", seconds(r.sent_ns, r.last_ns)},
               {"prompt_tokens", nullptr},
               {"output_tokens", nullptr}};
  if (r.wanted_prompt_tokens >= 0) json["prompt_tokens"] = r.wanted_prompt_tokens;
  if (r.usage && r.usage->prompt_tokens >= 0) json["prompt_tokens"] = r.usage->prompt_tokens;
  if (r.usage && r.usage->completion_tokens >= 0)
    json["output_tokens"] = r.usage->completion_tokens;
  if (r.failed()) {
    json["http_status"] = r.status;
    json["detail"] = r.detail;
  }
  return json;
}

Json cell_json(const LoadCell& cell) {
  const LevelSummary& s = cell.summary;
  Json json;
  if (!cell.format.empty()) json["kv"] = cell.format;
  if (!cell.input.empty()) json["input_len"] = cell.input;
  if (cell.level.open_loop()) {
    json["rate"] = cell.level.rate;
  } else {
    json["concurrency"] = cell.level.concurrency;
  }
  json["seconds"] = s.seconds;
  json["succeeded"] = s.succeeded;
  json["failed"] = s.failed;
  json["cut_off"] = s.cut_off;
  json["failures"] = Json::object();
  for (const auto& [name, count] : s.failures) json["failures"][name] = count;
  for (const Latency& latency : kLatencies)
    json[fmt::format("{}_s", latency.key)] = spread_json(s.*latency.spread);
  json["requests_per_s"] = s.request_rate;
  json["output_tokens_per_s"] = optional_json(s.output_rate);
  json["tokens_per_s"] = optional_json(s.total_rate);
  json["prompt_tokens"] = count_json(s.prompt_tokens);
  json["output_tokens"] = count_json(s.output_tokens);
  json["cached_tokens"] = count_json(s.cached_tokens);
  json["goodput_requests_per_s"] = optional_json(s.goodput);
  json["good_share"] = optional_json(s.good_share);
  json["preemptions"] = count_json(cell.preemptions);
  json["answers_without_count"] = s.uncounted;
  json["answers_counted_by_tokenizer"] = s.retokenized;
  json["prompts_counted_otherwise"] = s.other_prompt_count;
  json["tokens_per_piece"] = s.tokens_per_piece > 0 ? Json(s.tokens_per_piece) : Json();
  json["worst_lag_s"] = cell.level.open_loop() ? Json(cell.worst_lag_s) : Json();
  json["interrupted"] = cell.interrupted;
  json["requests"] = Json::array();
  const int64_t begin_ns = cell.records.empty() ? 0 : cell.records[0].sent_ns;
  for (const load::RequestRecord& r : cell.records)
    json["requests"].push_back(request_json(r, begin_ns));
  return json;
}

Json search_json(const LoadSearch& search) {
  Json json;
  if (!search.format.empty()) json["kv"] = search.format;
  if (!search.input.empty()) json["input_len"] = search.input;
  json["max_concurrency"] = search.found.concurrency;
  json["reason"] = search.found.reason;
  json["probes"] = Json::array();
  for (const load::Probe& probe : search.found.probes)
    json["probes"].push_back({{"concurrency", probe.concurrency},
                              {"stable", probe.violation.empty() && !probe.interrupted},
                              {"violation", probe.violation}});
  return json;
}

Json settings_json(const Settings& s) {
  return {
      {"input_len", s.is_given("prompts") ? Json() : Json(s.input_lengths)},
      {"output_len", s.output_lengths},
      {"prompts", s.prompts_file},
      {"shared_prefix", s.shared_share},
      {"ignore_eos", s.ignore_eos},
      {"chat", s.chat},
      {"seed", s.seed},
      {"tokenizer", s.tokenizer},
      {"duration_s", s.is_given("requests") && !s.is_given("duration") ? Json() : Json(s.duration)},
      {"requests", s.requests > 0 ? Json(s.requests) : Json()},
      {"warmup", s.warmup},
      {"timeout_s", s.timeout},
      {"slo", s.slo},
      {"find_max", s.find_max},
      {"serve_options", s.serve_options}};
}

}  // namespace

std::string render_load(const LoadReport& report) {
  const bool colored = has_colors(stdout);
  std::string out;
  for (const LoadServerFacts& server : report.servers) {
    std::string line = server.format.empty() ? server.url : server.format;
    line += fmt::format(": {}", server.model);
    if (!server.facts.version.empty()) line += fmt::format(", version {}", server.facts.version);
    if (!server.prompt_counter.empty())
      line += fmt::format("; prompts counted by {}", server.prompt_counter);
    if (server.peak_bytes > 0) {
      line += fmt::format("; {} of memory at the most",
                          human_bytes(static_cast<double>(server.peak_bytes)));
    }
    append_wrapped(out, line, 0);
  }
  for (const LoadCell& cell : report.cells) {
    if (is_shown_whole(cell, report)) append_block(out, cell, report.slo, colored);
  }
  if (report.cells.size() > 1) out += side_by_side(report, colored);
  for (const LoadSearch& search : report.searches) {
    std::string line = search.format.empty() ? "" : search.format + ", ";
    if (!search.input.empty()) line += fmt::format("prompts of {} tokens, ", search.input);
    line += search.found.concurrency == 0
                ? "not even one request at a time keeps the limits"
                : fmt::format("largest stable concurrency {}", search.found.concurrency);
    out += '\n';
    append_wrapped(out, fmt::format("{}; {}", line, search.found.reason), 0);
  }
  const std::vector<std::string> notes = notes_of(report);
  if (!notes.empty()) out += '\n';
  for (const std::string& note : notes) append_wrapped(out, "note: " + note, 0);
  return out;
}

Json load_json(const LoadReport& report, const Settings& settings) {
  Json json = {{"kvant", KVANT_VERSION}, {"settings", settings_json(settings)}};
  json["servers"] = Json::array();
  for (const LoadServerFacts& server : report.servers) {
    Json entry;
    if (!server.format.empty()) entry["kv"] = server.format;
    entry["url"] = server.url;
    entry["model"] = server.model;
    entry["version"] = server.facts.version;
    entry["server"] = server.facts.software;
    entry["prompts_counted_by"] = server.prompt_counter;
    entry["peak_bytes"] = server.peak_bytes > 0 ? Json(server.peak_bytes) : Json();
    json["servers"].push_back(std::move(entry));
  }
  json["levels"] = Json::array();
  for (const LoadCell& cell : report.cells) json["levels"].push_back(cell_json(cell));
  json["searches"] = Json::array();
  for (const LoadSearch& search : report.searches) json["searches"].push_back(search_json(search));
  json["notes"] = notes_of(report);
  return json;
}

}  // namespace kvant::cli
