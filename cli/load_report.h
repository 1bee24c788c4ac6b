// What `kvant load` prints: a block of figures for each level, all levels side by side, JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/output.h"
#include "engine/settings.h"
#include "load/find_max.h"
#include "load/server.h"
#include "load/summary.h"

namespace kvant::cli {

// One level against one server.
struct LoadCell {
  std::string format;  // of the matrix's server, or ""
  std::string input;   // "512:1024", or "" for prompts of a file
  load::Level level;
  load::LevelSummary summary;
  std::vector<load::RequestRecord> records;
  std::optional<int64_t> preemptions;
  double worst_lag_s = 0;
  bool interrupted = false;
};

struct LoadSearch {
  std::string format, input;
  load::FoundMax found;
};

struct LoadServerFacts {
  std::string format, url, model;
  load::ServerFacts facts;
  std::string prompt_counter;  // what counted the prompts' tokens, or ""
  int64_t peak_bytes = 0;      // of a server of the matrix
};

struct LoadReport {
  std::vector<LoadServerFacts> servers;
  std::vector<LoadCell> cells;
  std::vector<LoadSearch> searches;
  load::Slo slo;
  std::string tokenizer;  // --tokenizer, or ""
};

std::string render_load(const LoadReport& report);
Json load_json(const LoadReport& report, const Settings& settings);

}  // namespace kvant::cli
