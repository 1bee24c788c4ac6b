// Command: one row per thing that `kvant` can do. Adding a command is one file and one row in
// main.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/settings.h"
#include "kvant/status.h"

namespace kvant::cli {

class MemoryBudget;

struct Invocation {
  std::string model;  // the positional argument: a model's path, or another word
  Settings settings;
  MemoryBudget* memory = nullptr;  // where a command enters what it takes; main() reads it
};

struct Command {
  std::string_view name;
  std::string_view section;     // heading in `kvant --help`
  std::string_view positional;  // "MODEL", "WHAT", "[WORD]" if it may be left out, or "" for none
  std::string_view summary;     // one line
  std::string_view about;       // the paragraph of `kvant NAME --help`
  std::string_view example;     // one or more whole command lines
  std::vector<OptionGroup> groups;
  Status (*run)(const Invocation&);
};

std::span<const Command> all_commands();

// One function per file NAME_command.cc.
Status run_compare(const Invocation& in);
Status run_generate(const Invocation& in);
Status run_chat(const Invocation& in);
Status run_perplexity(const Invocation& in);
Status run_sensitivity(const Invocation& in);
Status run_logits(const Invocation& in);
Status run_tokenize(const Invocation& in);
Status run_detokenize(const Invocation& in);
Status run_formats(const Invocation& in);
Status run_inspect(const Invocation& in);
Status run_calibrate(const Invocation& in);
Status run_plan(const Invocation& in);
Status run_doctor(const Invocation& in);
Status run_bench(const Invocation& in);
Status run_serve(const Invocation& in);
Status run_load(const Invocation& in);

}  // namespace kvant::cli
