// kvant bench attention --targets: what is wanted of attention's speed, what was measured, and
// whether that is enough.

#include <fmt/format.h>

#include <memory>

#include "cli/bench.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "evaluate/attention_targets.h"
#include "simd/cpu.h"

namespace kvant::cli {
namespace {

struct Measured {
  std::vector<TargetReport> reports;
  std::vector<TargetVerdict> verdicts;
  std::string notes;
};

void add_note(std::string& notes, const std::string& note) {
  if (!note.empty()) notes += (notes.empty() ? "" : "; ") + note;
}

// Decoding is timed on one thread and on all; a prefill, which takes peers seconds, on all.
Result<TargetReport> time_run(const TargetRun& run, const Settings& s,
                              std::span<ThreadPool* const> pools, std::string& notes) {
  AttentionRequest request = target_request(run, active_isa(), notes);
  if (s.is_given("repeats")) request.repeats = static_cast<int>(s.repeats);
  if (s.no_peers) request.peers.clear();
  if (run.kind == RunKind::kPrefill) pools = pools.last(1);
  Progress progress(fmt::format("timing {}", run.name));
  KVANT_ASSIGN(AttentionReport report,
               bench_attention(request, pools, [&](double share) { progress.update(share); }));
  add_note(notes, report.notes);
  return TargetReport{.run = &run, .report = std::move(report)};
}

Result<Measured> measure(const Settings& s) {
  KVANT_ASSIGN(const std::vector<const TargetRun*> runs,
               choose_runs(s.only.empty() ? std::vector<std::string>() : split_items(s.only)));
  ThreadPool one(1);
  std::unique_ptr<ThreadPool> all;
  std::vector<ThreadPool*> pools = {&one};
  if (num_threads(s) > 1) {
    all = std::make_unique<ThreadPool>(num_threads(s));
    pools.push_back(all.get());
  }
  Measured out;
  for (const TargetRun* run : runs) {
    KVANT_ASSIGN(TargetReport report, time_run(*run, s, pools, out.notes));
    out.reports.push_back(std::move(report));
  }
  out.verdicts = judge_targets(out.reports, active_isa());
  return out;
}

std::string number(double x) { return fmt::format("{:.2f}", x); }

std::string render(const Measured& measured) {
  Table table({{"target", true},
               {"format", true},
               {"threads"},
               {"wanted"},
               {"measured"},
               {"time"},
               {"spread"},
               {"reached"}});
  std::string run;
  for (const TargetVerdict& v : measured.verdicts) {
    if (v.run != run) table.add_heading(run = v.run);
    const bool is_there = v.measured.has_value();
    const Color color = !is_there ? Color::kDim : v.reached ? Color::kGreen : Color::kRed;
    table.add_row({{std::string(v.target->what)},
                   {v.format, Color::kBold},
                   {fmt::format("{}", v.threads)},
                   {number(v.target->wanted)},
                   {is_there ? number(*v.measured) : "not measured", color},
                   {is_there ? fmt::format("{:.3f} ms", v.row.ms) : ""},
                   {is_there ? fmt::format("{:.0f} %", 100 * v.row.spread) : ""},
                   {is_there ? v.reached ? "yes" : "no" : "", color}});
  }
  return table.render(has_colors(stdout));
}

Json verdict_json(const TargetVerdict& v) {
  return {{"run", v.run},
          {"target", v.target->what},
          {"format", v.format},
          {"against", v.target->against},
          {"threads", v.threads},
          {"wanted", v.target->wanted},
          {"measured", optional_json(v.measured)},
          {"ms", v.measured ? Json(v.row.ms) : Json()},
          {"spread", v.measured ? Json(v.row.spread) : Json()},
          {"reached", v.measured ? Json(v.reached) : Json()}};
}

Json report_json(const Measured& measured) {
  Json json = {{"isa", isa_name(active_isa())}, {"cpu", cpu_description()}};
  json["notes"] = measured.notes;
  for (const char* list : {"runs", "rows", "targets"}) json[list] = Json::array();
  for (const TargetReport& of : measured.reports) {
    const AttentionShape& shape = of.run->shape;
    Json run = {{"run", of.run->name},        {"heads", shape.heads},
                {"kv_heads", shape.kv_heads}, {"dim", shape.dim},
                {"tokens", shape.tokens},     {"queries", shape.queries},
                {"layers", shape.layers},     {"read_bandwidth", Json::array()}};
    for (const AttentionBandwidth& b : of.report.bandwidths) {
      run["read_bandwidth"].push_back(
          {{"threads", b.threads}, {"bytes_per_second", b.bytes_per_second}});
    }
    json["runs"].push_back(std::move(run));
    for (const AttentionTiming& t : of.report.rows) {
      Json row = {{"run", of.run->name}, {"threads", t.threads}};
      row.update(timing_json(t));
      json["rows"].push_back(std::move(row));
    }
  }
  for (const TargetVerdict& v : measured.verdicts) json["targets"].push_back(verdict_json(v));
  return json;
}

void print_summary(const Measured& measured) {
  size_t reached = 0, known = 0;
  for (const TargetVerdict& v : measured.verdicts) {
    known += v.measured.has_value();
    reached += v.reached;
  }
  note("{}\n", cpu_description());
  for (const TargetReport& of : measured.reports) {
    for (const AttentionBandwidth& b : of.report.bandwidths) {
      note("{}: {}, memory reads {}/s\n", of.run->name, counted(b.threads, "thread"),
           human_bytes(b.bytes_per_second));
    }
  }
  note("{}; {} of {} reached, {} not measured\n", isa_name(active_isa()), reached,
       counted(static_cast<int64_t>(known), "target"), measured.verdicts.size() - known);
  if (!measured.notes.empty()) note("note     {}\n", measured.notes);
}

}  // namespace

Status bench_targets_command(const Invocation& in) {
  const Settings& s = in.settings;
  for (const char* own : {"kv", "heads", "kv-heads", "dim", "tokens", "queries", "layers"}) {
    if (s.is_given(own))
      return invalid_argument(fmt::format("--{} can't change what --targets measures", own));
  }
  KVANT_ASSIGN(const Measured measured, measure(s));
  print_summary(measured);
  if (!s.json.empty()) KVANT_TRY(write_json(s.json, report_json(measured)));
  return takes_output(s.json) ? Status() : write_text("-", render(measured));
}

}  // namespace kvant::cli
