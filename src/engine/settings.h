// Settings: everything a user can set, declared once: one row per option with its name, default,
// range and help.
//
// The command line, the documentation and whatever serves requests later read the same rows; a
// value is parsed and checked here and nowhere else. Nothing here knows a model: what depends on
// one (formats of layers) is resolved later.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvant/status.h"

namespace kvant {

struct Settings {
  // the cache
  std::string kv;
  std::string kv_layers;
  int64_t sinks = 0;
  int64_t exact_window = 0;
  int64_t rotation_seed = 0;
  bool decode_pages = false;
  bool strict = false;
  // the model
  std::string weights;
  bool invariant = false;
  int64_t threads = 0;
  bool verbose = false;
  // texts
  std::string text_file, prompt, prompt_file, text, ids, ids_file, system;
  int64_t context = 0;
  int64_t windows = 1;
  int64_t chunk = 0;
  bool no_special = false;
  bool keep_special = false;
  // sampling
  int64_t max_tokens = 0;
  double temperature = 0, top_p = 1, min_p = 0, repeat_penalty = 1;
  int64_t top_k = 0;
  int64_t seed = 0;
  std::vector<std::string> stop;
  bool chat = false;
  bool ignore_end = false;
  // measuring
  int64_t decode_steps = 0;
  bool no_speed = false;
  bool no_baseline = false;
  double budget = 0;  // sealed bits per element
  bool per_head = false;
  double max_kld = 0, max_kld_p99 = 0, min_top1 = 0;
  int64_t heads = 0, kv_heads = 0, dim = 0, queries = 0, repeats = 0, layers = 0;
  bool no_peers = false, targets = false;
  std::string only;  // runs of the targets, by comma
  // planning
  std::string token_counts, prompt_spread, output_spread;
  std::string device_memory, workspace, activation, weights_dtype, parameters;
  int64_t batch = 1, beams = 1, concurrency = 1, shared_prefix = 0, source_tokens = 0;
  int64_t tensor_ranks = 1, pipeline_ranks = 1, context_ranks = 1;
  bool all_formats = false, explain = false, per_layer = false, exact_bytes = false;
  // calibration
  std::string data, formats_for, out_directory, calibration;
  std::string source, scale_method, held_out, buckets;
  int64_t samples = 0, max_length = 0;
  bool skip_bad = false, resume = false, stability = false;
  bool scales = false;
  // load
  std::string server_model, input_lengths, output_lengths, prompts_file, tokenizer;
  std::string concurrency_levels, rates, slo, matrix, serve_options, api_key_file;
  double shared_share = 0, duration = 0, timeout = 0;
  int64_t requests = 0, warmup = 0, max_concurrency = 0;
  bool ignore_eos = false, find_max = false;
  // serving
  std::string host, serve_memory, swap_memory, prefix_cache, cors, served_name;
  int64_t port = 0, pages = 0, max_sequences = 0, max_queue = 0, error_pages = 0;
  // output
  std::string json, csv, out;

  // Options that were set by hand, by name.
  std::set<std::string, std::less<>> given;
  bool is_given(std::string_view name) const { return given.contains(name); }
};

// Which commands offer an option.
enum class OptionGroup : uint8_t {
  kCache,
  kLayerFormats,
  kManyFormats,
  kModel,
  kVerbose,
  kText,
  kPrompt,
  kChat,
  kSampling,
  kMeasure,
  kCompare,
  kPerplexity,
  kSensitivity,
  kLogits,
  kTokenize,
  kDetokenize,
  kBench,
  kPlan,
  kDevice,
  kWorkload,
  kPlanOutput,
  kCalibrate,
  kCalibration,
  kInspect,
  kThreads,
  kLoadRequests,
  kLoad,
  kLoadServer,
  kServe,
  kJson,
  kCsv,
};
std::string_view group_title(OptionGroup group);

// What a text may be.
enum class TextForm : uint8_t {
  kAny,
  kFilled,    // not empty
  kOneItem,   // not empty, and no list
  kItems,     // a list by comma: no item is empty, none is there twice
  kCounts,    // tokens: 4k (k is 1024); a list by comma where the field is a text
  kSpread,    // an average and a 95th percentile of tokens: 2k:8k, or one number for both
  kSize,      // bytes: 24G (G is 2^30), 24GB (10^9)
  kOptional,  // may be left out, which means "-", and comes after `=`: --json, --json=FILE
};

struct OptionSpec {
  OptionGroup group;
  std::string_view name;      // without dashes; "p,prompt" where there is a short form
  std::string_view metavar;   // empty: a flag
  std::string_view fallback;  // the default, as text; empty: none
  std::string_view help;
  std::variant<bool Settings::*, int64_t Settings::*, double Settings::*, std::string Settings::*,
               std::vector<std::string> Settings::*>
      field;
  double low = 0, high = 0;  // of numbers, both included
  int64_t multiple = 0;      // of integers: 64 where the value counts whole pages
  TextForm form = TextForm::kAny;

  std::string_view long_name() const { return name.substr(short_name().empty() ? 0 : 2); }
  // One letter, or "".
  std::string_view short_name() const {
    return name.size() > 1 && name[1] == ',' ? name.substr(0, 1) : std::string_view();
  }
  bool is_flag() const { return metavar.empty(); }
  bool is_list() const {
    return std::holds_alternative<std::vector<std::string> Settings::*>(field);
  }
};
std::span<const OptionSpec> option_specs();

// The options of several groups, in order; where two share a name, the earlier group's.
std::vector<const OptionSpec*> options_of(std::span<const OptionGroup> groups);

// Settings with every default of these groups in place.
Settings default_settings(std::span<const OptionGroup> groups);

// Parses `value` into the option's field; invalid_argument names option, value and what was wanted.
// Marks it as given.
Status set_option(Settings& settings, const OptionSpec& spec, std::string_view value);

// Options that can't go together, for commands that read a model.
Status check_settings(const Settings& settings);

// "4096", "4k", "1M": a number of tokens from 1 on; k is 1024. invalid_argument otherwise.
Result<int64_t> parse_count(std::string_view text);
// "1.5G", "24GiB" (2^30 each), "24GB" (10^9 each), "1000": bytes, up to 2^60. invalid_argument
// otherwise.
Result<uint64_t> parse_size(std::string_view text);
// "7.6B", "135M", "1000": a number of things, decimal, up to 10^15. invalid_argument otherwise.
Result<int64_t> parse_amount(std::string_view text);

// "a,b,c" cut at the commas.
std::vector<std::string> split_items(std::string_view list);

// "1,2,3" or white space between: token ids, each at least 0.
Result<std::vector<int32_t>> parse_ids(std::string_view text);

}  // namespace kvant
