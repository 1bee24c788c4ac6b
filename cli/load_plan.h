// LoadPlan: what `kvant load` was asked for, read and checked before anything is sent.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/open_tokenizer.h"
#include "load/http.h"
#include "load/slo.h"
#include "load/workload.h"

namespace kvant::cli {

struct LoadPlan {
  load::Endpoint server;                 // the host is empty where the matrix starts it
  std::vector<std::string> formats;      // of the matrix; empty: there is a server
  std::vector<std::string> serve_words;  // "--memory", "2G"

  load::Api api = load::Api::kCompletions;
  std::vector<load::TokenRange> inputs;  // one, not looked at, where there are prompts of a file
  load::TokenRange output;
  std::vector<load::FilePrompt> prompts;
  OpenTokenizer tokenizer;  // may be empty

  std::vector<load::Level> levels;  // none with --find-max
  double duration_s = 0;            // 0: no end but that of the requests
  load::Slo slo;
};

// One sentence for what can't be.
Result<LoadPlan> plan_load(const Invocation& in);

}  // namespace kvant::cli
