// OpenModel: what every command that computes does first: threads, model, formats, cache options,
// and the block of lines on stderr that says what was asked for and what is really in effect.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "calibrate/sidecar.h"
#include "cli/command.h"
#include "cli/output.h"
#include "kvant/cache.h"
#include "model/model.h"

namespace kvant::cli {

// not_found unless there is a file, or a directory with `needed` in it.
Status check_model_path(const std::string& path, const std::string& needed);

// --threads, or every processor.
int num_threads(const Settings& settings);

// What the others are measured against.
inline constexpr std::string_view kBaselineFormat = "bf16";

// The formats of one --kv value for every layer, and the cache options that follow.
struct CachePlanChoice {
  std::string name;  // as asked for
  ResolvedFormats formats;
  CacheOptions options;
  std::vector<std::string>
      scales;  // where given, fixed and head scales come from, one sentence each

  // False where every layer's formats are exact, so that no page is ever sealed.
  bool seals() const { return exact_bits() == 0; }
  // Bits of the widest exact format where all are exact, else 0.
  double exact_bits() const;
};

// What a command will do with a model.
struct RunPlan {
  std::vector<std::string> formats;  // one cache each, as --kv names them
  bool baseline = false;             // one more cache, in bf16
  int64_t tokens = 0;                // that each will hold; 0: as many as come
};

struct OpenModel {
  std::optional<Sidecar> calibration;
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<Model> model;
  std::vector<CachePlanChoice> caches;  // one per format of the plan
};

// Refuses what can be refused before weights are read (paths, format names, options that don't go
// together; then, from the model's shape, formats of layers, the context and the memory), and
// loads. What the run takes is entered in `in.memory`.
Result<OpenModel> open_model(const Invocation& in, const RunPlan& plan);

// For a command that learns only from the loaded model how many tokens its caches will hold:
// exhausted if those don't fit into memory.
Status check_cache_memory(const Invocation& in, std::span<const CachePlanChoice> caches,
                          int64_t tokens);

// The name of the code that reads such rows of a format, "-" if none does.
std::string kernel_of(const std::string& format, Side side, int dim);

// The pair that most layers have, and "(+ 3 layers otherwise)" if not all do.
FormatPair main_pair(std::span<const FormatPair> layers);
std::string describe_formats(std::span<const FormatPair> layers);

// Prints the start-up block to stderr.
void announce(const Invocation& in, const OpenModel& open);

// What every JSON output says about its run.
Json run_facts(const Invocation& in, const OpenModel& open);
Json formats_json(const CachePlanChoice& choice);
// The name of the cache format that the checkpoint declares, or null.
Json declared_json(const ModelInfo& info);

}  // namespace kvant::cli
