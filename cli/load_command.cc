// kvant load: levels of load against a server, or against servers of our own, one per format.

#include <fmt/format.h>

#include <filesystem>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/load_plan.h"
#include "cli/load_report.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "load/own_server.h"

namespace kvant::cli {
namespace {

constexpr double kStartPatience = 600;  // seconds, for a server to load its model

// A counter that Ctrl-C ends: sorting words out may take a slow server a while.
class InterruptibleCounter final : public load::TokenCounter {
 public:
  explicit InterruptibleCounter(load::TokenCounter& counter) : counter_(counter) {}
  Result<int64_t> count(const std::string& prompt) override {
    if (InterruptScope::interrupted()) return cancelled("interrupted before anything was measured");
    return counter_.count(prompt);
  }
  std::string name() const override { return counter_.name(); }

 private:
  load::TokenCounter& counter_;
};

// One server, from the first question to the last level.
class LoadRun {
 public:
  LoadRun(const Settings& settings, const LoadPlan& plan, load::Endpoint server, std::string format,
          LoadReport& report)
      : settings_(settings),
        plan_(plan),
        server_(std::move(server)),
        format_(std::move(format)),
        report_(report) {}

  Status run() {
    KVANT_TRY(meet());
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      if (InterruptScope::interrupted()) return {};
      KVANT_TRY(check_length(plan_.inputs[i]));
      if (settings_.find_max) {
        KVANT_TRY(search(i));
        continue;
      }
      for (const load::Level& level : plan_.levels) {
        if (InterruptScope::interrupted()) return {};
        KVANT_TRY(measure(i, level, settings_.warmup).status());
      }
    }
    return {};
  }

 private:
  // Learns what the server is, and which words have one token to it.
  Status meet() {
    LoadServerFacts server{.format = format_,
                           .url = server_.url.text(),
                           .model = "",
                           .facts = {},
                           .prompt_counter = "",
                           .peak_bytes = 0};
    KVANT_ASSIGN(server.facts, load::ask_facts(server_));
    KVANT_ASSIGN(server.model, load::choose_model(server.facts, settings_.server_model));
    model_ = server.model;
    if (plan_.prompts.empty()) {
      std::unique_ptr<load::TokenCounter> counter;
      if (plan_.tokenizer.tokenizer) {
        counter =
            load::tokenizer_counter(*plan_.tokenizer.tokenizer, settings_.tokenizer, plan_.api);
      } else {
        KVANT_ASSIGN(counter, load::server_counter(server_, model_, plan_.api, settings_.timeout));
      }
      InterruptibleCounter interruptible(*counter);
      KVANT_ASSIGN(words_, load::PromptWords::find(interruptible));
      server.prompt_counter = counter->name();
    }
    report_.servers.push_back(std::move(server));
    return {};
  }

  Status check_length(const load::TokenRange& input) const {
    if (!plan_.prompts.empty() || input.low >= words_.fewest_tokens()) return {};
    return invalid_argument(
        fmt::format("--input-len {}: wanted at least {}, what the shortest prompt has here",
                    input.text(), words_.fewest_tokens()));
  }

  load::Workload workload(size_t input) const {
    load::WorkloadOptions options{.api = plan_.api,
                                  .model = model_,
                                  .input = plan_.inputs[input],
                                  .output = plan_.output,
                                  .shared_prefix = settings_.shared_share,
                                  .ignore_eos = settings_.ignore_eos,
                                  .seed = static_cast<uint64_t>(settings_.seed),
                                  .level = levels_};
    return plan_.prompts.empty() ? load::Workload(options, words_)
                                 : load::Workload(options, plan_.prompts);
  }

  int64_t count_text(const std::string& text) const {
    return static_cast<int64_t>(
        plan_.tokenizer.tokenizer->encode(text, SpecialTokens::kNone).size());
  }

  // Appends a cell to the report.
  Result<const LoadCell*> measure(size_t input, const load::Level& level, int64_t warmup) {
    LoadCell cell;
    cell.format = format_;
    if (plan_.prompts.empty()) cell.input = plan_.inputs[input].text();
    cell.level = level;
    const bool counts = plan_.tokenizer.tokenizer != nullptr;
    load::DriveOptions options;
    options.server = server_;
    options.api = plan_.api;
    options.level = level;
    options.duration_s = plan_.duration_s;
    options.max_requests = settings_.requests;
    options.warmup = warmup;
    options.timeout_s = settings_.timeout;
    options.exact_tokens = settings_.ignore_eos;
    options.keep_text = counts ? load::KeepText::kYes : load::KeepText::kNo;
    const std::optional<int64_t> before = load::ask_preemptions(server_);
    load::Driven driven;
    {
      Progress progress(fmt::format("{}{}{}", format_, format_.empty() ? "" : ", ", level.text()));
      options.on_tick = [&](const load::DriveProgress& p) {
        progress.update(p.share, fmt::format("  {} done, {} failed, {} under way", p.done, p.failed,
                                             p.running));
        return !InterruptScope::interrupted();
      };
      KVANT_ASSIGN(driven, load::drive(options, workload(input)));
    }
    ++levels_;
    const std::optional<int64_t> after = load::ask_preemptions(server_);
    if (before && after) cell.preemptions = *after - *before;
    cell.records = std::move(driven.records);
    cell.interrupted = driven.interrupted;
    cell.worst_lag_s = driven.worst_lag_s;
    load::TextCounter counter;
    if (counts) counter = [this](const std::string& text) { return count_text(text); };
    cell.summary = load::summarize(cell.records, plan_.slo, counter);
    for (load::RequestRecord& record : cell.records) record.text = std::string();  // was counted
    report_.cells.push_back(std::move(cell));
    return &report_.cells.back();
  }

  // The first request of every place isn't counted: all of them begin at once, which no steady
  // state does.
  Status search(size_t input) {
    const auto probe = [&](int64_t concurrency) -> Result<load::Probe> {
      KVANT_ASSIGN(const LoadCell* cell, measure(input, {.concurrency = concurrency, .rate = 0},
                                                 std::max(settings_.warmup, concurrency)));
      return load::Probe{.concurrency = concurrency,
                         .violation = load::violation(cell->summary, plan_.slo),
                         .interrupted = cell->interrupted};
    };
    KVANT_ASSIGN(load::FoundMax found, load::find_max(settings_.max_concurrency, probe));
    report_.searches.push_back({.format = format_,
                                .input = plan_.prompts.empty() ? plan_.inputs[input].text() : "",
                                .found = std::move(found)});
    return {};
  }

  const Settings& settings_;
  const LoadPlan& plan_;
  load::Endpoint server_;
  std::string format_, model_;
  LoadReport& report_;
  load::PromptWords words_;
  uint64_t levels_ = 0;
};

Result<std::vector<std::string>> serve_words(const Invocation& in, const LoadPlan& plan,
                                             const std::string& format) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    return io_error(fmt::format("this program's own file isn't known: {}", error.message()));
  std::vector<std::string> words = {program.string(), "serve",     in.model, "--kv",  format,
                                    "--host",         "127.0.0.1", "--port", "{port}"};
  if (!in.settings.api_key_file.empty()) {
    words.emplace_back("--api-key-file");
    words.push_back(in.settings.api_key_file);
  }
  words.insert(words.end(), plan.serve_words.begin(), plan.serve_words.end());
  return words;
}

Status run_matrix(const Invocation& in, const LoadPlan& plan, LoadReport& report) {
  KVANT_TRY(check_model_path(in.model, "config.json"));
  for (const std::string& format : plan.formats) {
    KVANT_ASSIGN(std::vector<std::string> words, serve_words(in, plan, format));
    std::unique_ptr<load::OwnServer> server;
    {
      Progress progress(fmt::format("{}, starting", format));
      Result<std::unique_ptr<load::OwnServer>> started = load::OwnServer::start(
          std::move(words), kStartPatience, [] { return InterruptScope::interrupted(); });
      if (!started.ok())
        return started.status().with_context(fmt::format("kvant serve --kv {}", format));
      server = std::move(started).value();
    }
    LoadRun run(in.settings, plan, {.url = server->url(), .api_key = plan.server.api_key}, format,
                report);
    const Status status = run.run();
    if (!report.servers.empty() && report.servers.back().format == format)
      report.servers.back().peak_bytes = server->peak_bytes();
    KVANT_TRY(status);
    if (InterruptScope::interrupted()) return {};
  }
  return {};
}

Status print(const LoadReport& report, const Settings& settings) {
  if (!settings.json.empty()) KVANT_TRY(write_json(settings.json, load_json(report, settings)));
  return takes_output(settings.json) ? Status() : write_text("-", render_load(report));
}

// All that a script wants to know from the exit code.
Status verdict(const LoadReport& report) {
  int64_t succeeded = 0, failed = 0;
  std::string first;
  for (const LoadCell& cell : report.cells) {
    succeeded += cell.summary.succeeded;
    failed += cell.summary.failed;
    if (first.empty()) first = cell.summary.first_failure;
  }
  if (InterruptScope::interrupted()) {
    return cancelled(
        fmt::format("interrupted; {} were measured until then", counted(succeeded, "request")));
  }
  if (succeeded == 0 && failed > 0)
    return io_error(fmt::format("every request failed, the first: {}", first));
  return {};
}

}  // namespace

Status run_load(const Invocation& in) {
  KVANT_ASSIGN(const LoadPlan plan, plan_load(in));
  LoadReport report;
  report.slo = plan.slo;
  report.tokenizer = in.settings.tokenizer;
  const InterruptScope interrupt;
  const Status status = plan.formats.empty()
                            ? LoadRun(in.settings, plan, plan.server, "", report).run()
                            : run_matrix(in, plan, report);
  // What was measured before something went wrong isn't lost.
  if (!report.cells.empty()) KVANT_TRY(print(report, in.settings));
  KVANT_TRY(status);
  return verdict(report);
}

}  // namespace kvant::cli
