// OpenModel: what every command that computes does first: threads, model, formats, cache options,
// and the block of lines on stderr that says what was asked for and what is really in effect.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "cli/command.h"
#include "cli/output.h"
#include "kvant/cache.h"
#include "model/model.h"

namespace kvant::cli {

struct OpenModel {
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<Model> model;
};

// --threads, or every processor.
int num_threads(const Settings& settings);

// Refuses what can be refused before weights are read (paths, format names, options that don't go
// together), then loads.
Result<OpenModel> open_model(const Invocation& in);

// The formats of one --kv value for every layer, and the cache options that follow.
struct CachePlanChoice {
  std::string name;  // as asked for
  ResolvedFormats formats;
  CacheOptions options;
};
Result<CachePlanChoice> choose_cache(const Settings& settings, std::string_view kv,
                                     const ModelInfo& info);

// "a,b,c" cut at commas; an empty item is an error.
Result<std::vector<std::string>> split_formats(std::string_view list);

// The pair that most layers have, and "(+ 3 layers otherwise)" if not all do.
FormatPair main_pair(std::span<const FormatPair> layers);
std::string describe_formats(std::span<const FormatPair> layers);

// Prints the start-up block to stderr.
void announce(const Invocation& in, const OpenModel& open,
              std::span<const CachePlanChoice> choices);

// What every JSON output says about its run.
Json run_facts(const Invocation& in, const OpenModel& open);
Json formats_json(const CachePlanChoice& choice);
// The name of the cache format that the checkpoint declares, or null.
Json declared_json(const ModelInfo& info);

// What --text or --ids-file holds, else the built-in sample; read before a model is loaded, so that
// a missing file is found at once.
struct TextInput {
  std::string source;  // for messages
  std::string text;
  std::vector<int32_t> ids;  // instead of text, if not empty
};
Result<TextInput> read_text(const Settings& settings);

// The first --context tokens of the input. Fewer are an error where the number was asked for, else
// a note.
Result<std::vector<int32_t>> context_tokens(const Settings& settings, const TextInput& input,
                                            const Model& model);

// invalid_argument if an id is outside the model's vocabulary.
Status check_ids(std::span<const int32_t> ids, const ModelInfo& info);

extern const std::string_view kSampleText;

}  // namespace kvant::cli
