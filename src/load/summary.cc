#include "load/summary.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvant::load {
namespace {

double seconds_between(int64_t from_ns, int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / 1e9;
}

// What is known of one success.
struct Figures {
  std::optional<double> ttft, tpot, e2e;
};

Figures figures_of(const RequestRecord& r, int64_t output_tokens) {
  Figures f;
  if (r.first_ns < 0) return f;
  f.ttft = seconds_between(r.sent_ns, r.first_ns);
  f.e2e = seconds_between(r.sent_ns, r.last_ns);
  if (output_tokens > 1)
    f.tpot = seconds_between(r.first_ns, r.last_ns) / static_cast<double>(output_tokens - 1);
  return f;
}

int64_t output_tokens_of(const RequestRecord& r, const TextCounter& count) {
  if (r.usage && r.usage->completion_tokens >= 0) return r.usage->completion_tokens;
  return count ? count(r.text) : -1;
}

std::string failure_name(const RequestRecord& r) {
  if (r.outcome == Outcome::kStatus) return fmt::format("HTTP status {}", r.status);
  return std::string(outcome_name(r.outcome));
}

// Adds a count to a sum that is there only while all its parts are.
void add(std::optional<int64_t>& sum, int64_t count) {
  if (count < 0) {
    sum.reset();
  } else if (sum) {
    *sum += count;
  }
}

std::string seconds_text(double s) {
  return s < 1 ? fmt::format("{:.4g} ms", s * 1e3) : fmt::format("{:.4g} s", s);
}

}  // namespace

double LevelSummary::failure_rate() const {
  const int64_t ended = succeeded + failed;
  return ended == 0 ? 0 : static_cast<double>(failed) / static_cast<double>(ended);
}

bool meets(const RequestRecord& record, int64_t output_tokens, const Slo& slo) {
  const Figures f = figures_of(record, output_tokens);
  const auto kept = [](std::optional<double> value, std::optional<double> limit) {
    return !value || !limit || *value <= *limit;
  };
  std::optional<double> itl;
  if (slo.itl && !record.gaps_ns.empty()) {
    std::vector<double> gaps;
    for (int64_t gap : record.gaps_ns) gaps.push_back(static_cast<double>(gap) / 1e9);
    std::sort(gaps.begin(), gaps.end());
    itl = percentile(gaps, 0.95);
  }
  return kept(f.ttft, slo.ttft) && kept(f.tpot, slo.tpot) && kept(f.e2e, slo.e2e) &&
         kept(itl, slo.itl);
}

LevelSummary summarize(std::span<const RequestRecord> records, const Slo& slo,
                       const TextCounter& count) {
  LevelSummary out;
  out.prompt_tokens = out.output_tokens = out.cached_tokens = 0;
  std::vector<double> ttft, tpot, itl, e2e;
  int64_t good = 0, pieces = 0, begin_ns = -1, end_ns = -1;
  for (const RequestRecord& r : records) {
    if (!r.counted) continue;
    if (r.outcome == Outcome::kCutOff) {
      ++out.cut_off;
      continue;
    }
    begin_ns = begin_ns < 0 ? r.sent_ns : std::min(begin_ns, r.sent_ns);
    end_ns = std::max(end_ns, r.ended_ns);
    if (r.failed()) {
      ++out.failed;
      ++out.failures[failure_name(r)];
      if (out.first_failure.empty()) out.first_failure = r.detail;
      continue;
    }
    ++out.succeeded;
    const int64_t tokens = output_tokens_of(r, count);
    const bool counted_by_server = r.usage && r.usage->completion_tokens >= 0;
    if (tokens < 0) ++out.uncounted;
    if (tokens >= 0 && !counted_by_server) ++out.retokenized;
    const int64_t prompt = r.usage ? r.usage->prompt_tokens : -1;
    if (prompt >= 0 && r.wanted_prompt_tokens >= 0 && prompt != r.wanted_prompt_tokens)
      ++out.other_prompt_count;
    add(out.output_tokens, tokens);
    add(out.prompt_tokens, prompt >= 0 ? prompt : r.wanted_prompt_tokens);
    add(out.cached_tokens, r.usage ? r.usage->cached_tokens : -1);
    const Figures f = figures_of(r, tokens);
    if (f.ttft) ttft.push_back(*f.ttft);
    if (f.tpot) tpot.push_back(*f.tpot);
    if (f.e2e) e2e.push_back(*f.e2e);
    for (int64_t gap : r.gaps_ns) itl.push_back(static_cast<double>(gap) / 1e9);
    pieces += r.first_ns < 0 ? 0 : 1 + static_cast<int64_t>(r.gaps_ns.size());
    good += meets(r, tokens, slo) ? 1 : 0;
  }
  out.ttft = spread_of(std::move(ttft));
  out.tpot = spread_of(std::move(tpot));
  out.itl = spread_of(std::move(itl));
  out.e2e = spread_of(std::move(e2e));
  if (out.succeeded == 0) out.prompt_tokens = out.output_tokens = out.cached_tokens = std::nullopt;
  if (pieces > 0 && out.output_tokens)
    out.tokens_per_piece = static_cast<double>(*out.output_tokens) / static_cast<double>(pieces);
  out.seconds = begin_ns < 0 ? 0 : seconds_between(begin_ns, end_ns);
  if (out.seconds <= 0) return out;
  const auto per_second = [&](int64_t n) { return static_cast<double>(n) / out.seconds; };
  out.request_rate = per_second(out.succeeded);
  if (out.output_tokens) out.output_rate = per_second(*out.output_tokens);
  if (out.output_tokens && out.prompt_tokens)
    out.total_rate = per_second(*out.output_tokens + *out.prompt_tokens);
  if (slo.any()) {
    out.goodput = per_second(good);
    if (out.succeeded + out.failed > 0)
      out.good_share = static_cast<double>(good) / static_cast<double>(out.succeeded + out.failed);
  }
  return out;
}

std::string violation(const LevelSummary& level, const Slo& slo) {
  if (level.failure_rate() > slo.failures) {
    return fmt::format("{:.3g} % of the requests failed, limit {:.3g} %{}",
                       100 * level.failure_rate(), 100 * slo.failures,
                       level.first_failure.empty() ? "" : ": " + level.first_failure);
  }
  if (level.succeeded == 0) return "no request was finished";
  const struct {
    std::string_view name;
    const Spread& spread;
    std::optional<double> limit;
  } kChecks[] = {{"TTFT", level.ttft, slo.ttft},
                 {"TPOT", level.tpot, slo.tpot},
                 {"ITL", level.itl, slo.itl},
                 {"E2E", level.e2e, slo.e2e}};
  for (const auto& check : kChecks) {
    if (!check.limit || check.spread.count == 0 || check.spread.p95 <= *check.limit) continue;
    return fmt::format("P95 {} {}, limit {}", check.name, seconds_text(check.spread.p95),
                       seconds_text(*check.limit));
  }
  return "";
}

}  // namespace kvant::load
