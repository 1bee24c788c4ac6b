#include "engine/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/threads.h"

namespace kvant {
namespace {

using S = Settings;
using G = OptionGroup;
using F = TextForm;

constexpr std::string_view kSweep = "bf16,int8,k8v4,int4,int3,int2,fp8,kivi4,kivi2";
constexpr double kManyTokens = 1 << 24;
constexpr double kManySequences = 1LL << 40;

// clang-format off
const OptionSpec kSpecs[] = {
  {G::kCache, "kv", "FORMAT", "auto", "how K and V are stored: auto (what the checkpoint declares, else bf16), a preset (int8, k8v4, int4, int3, int2, fp8, kivi4, kivi2), a format, or K/V apart by a slash", &S::kv, 0, 0, 0, F::kOneItem},
  {G::kManyFormats, "kv", "A,B,C", kSweep, "the formats to compare, by comma; each is a preset, a format, or K/V", &S::kv, 0, 0, 0, F::kItems},
  {G::kLayerFormats, "kv-layers", "LIST", "", "other formats for some layers: \"0-1=bf16;-1=int8\"; sliding and full name the layers with a window and those without", &S::kv_layers, 0, 0, 0, F::kFilled},
  {G::kCache, "sinks", "N", "64", "tokens at the start that stay exact, a multiple of 64", &S::sinks, 0, kManyTokens, 64},
  {G::kCache, "exact-window", "W", "0", "recent tokens that stay exact beside the open page, a multiple of 64", &S::exact_window, 0, kManyTokens, 64},
  {G::kCache, "rotation-seed", "N", "0", "seed of the rotations of _rot formats", &S::rotation_seed, 0, 9e15},
  {G::kCache, "strict", "", "", "an error, not a note, where a layer can't have the format asked for", &S::strict},

  {G::kModel, "weights", "TYPE", "native", "store weights as native, f32, bf16, q8_0 or q4_0; independent of the cache", &S::weights, 0, 0, 0, F::kFilled},
  {G::kModel, "invariant", "", "", "the few-row path everywhere: any --chunk gives the same bits, more slowly", &S::invariant},
  {G::kVerbose, "v,verbose", "", "", "print the formats of every layer at the start", &S::verbose},
  {G::kThreads, "threads", "N", "", "threads to compute with (default: all processors this process may use)", &S::threads, 1, 1024},

  {G::kText, "text", "FILE", "", "the text to read (default: a sample that is built in)", &S::text_file, 0, 0, 0, F::kFilled},
  {G::kText, "ids-file", "FILE", "", "token ids to run instead of a text, from a file: numbers, or the JSON of kvant tokenize", &S::ids_file, 0, 0, 0, F::kFilled},
  {G::kText, "context", "N", "2048", "tokens of the text to run", &S::context, 2, kManyTokens},
  {G::kText, "windows", "N", "1", "stretches of --context tokens to run, one after the other, each from an empty cache; the figures are means over all their tokens", &S::windows, 1, 65536},
  {G::kMeasure, "chunk", "N", "512", "tokens per prefill step, a multiple of 64 (any number with --invariant)", &S::chunk, 1, kManyTokens},
  {G::kMeasure, "decode-pages", "", "", "attend to pages decoded to floats, in double and slowly: what the formats cost without the kernels' integer products", &S::decode_pages},
  {G::kCompare, "no-speed", "", "", "don't time: no decoding behind the text, and no speeds in table, JSON and CSV", &S::no_speed},
  {G::kCompare, "decode-steps", "N", "24", "tokens to time for the decode speed", &S::decode_steps, 1, 4096},
  {G::kCompare, "max-kld", "X", "0.005", "recommend a format only if its mean KL divergence stays below", &S::max_kld, 0, 1e6},
  {G::kCompare, "max-kld-p99", "X", "0.05", "... and its 99th percentile below", &S::max_kld_p99, 0, 1e6},
  {G::kCompare, "min-top1", "X", "0.95", "... and it agrees with BF16 on the best token at least this often", &S::min_top1, 0, 1},
  {G::kSensitivity, "kv", "A,B,C", "int8,int4,int2", "the formats that a layer may have, by comma; each is a preset, a format, or K/V", &S::kv, 0, 0, 0, F::kItems},
  {G::kSensitivity, "context", "N", "1024", "tokens of the text to run", &S::context, 128, kManyTokens},
  {G::kSensitivity, "budget", "BITS", "4.5", "sealed bits per element of K and V that the proposed mix may have on average", &S::budget, 0.1, 32},
  {G::kSensitivity, "per-head", "", "", "list the errors of every KV head, too", &S::per_head},
  {G::kSensitivity, "out", "DIR", "", "keep what was measured in kvant-cache.safetensors there, beside the calibration that --calibration names; kvant inspect DIR lists it", &S::out_directory, 0, 0, 0, F::kFilled},
  {G::kPerplexity, "no-baseline", "", "", "leave out the BF16 run that the KL divergence needs", &S::no_baseline},

  {G::kPrompt, "p,prompt", "TEXT", "", "the prompt", &S::prompt},
  {G::kPrompt, "prompt-file", "FILE", "", "the prompt, read from a file", &S::prompt_file, 0, 0, 0, F::kFilled},
  {G::kPrompt, "chat", "", "", "put the prompt into the model's chat template", &S::chat},
  {G::kChat, "system", "TEXT", "", "a system message", &S::system},
  {G::kSampling, "n,max-tokens", "N", "128", "tokens to generate at most", &S::max_tokens, 1, kManyTokens},
  {G::kSampling, "context", "N", "", "tokens that the cache may hold (default: what the model allows)", &S::context, 2, kManyTokens},
  {G::kSampling, "temperature", "T", "0", "0 takes the best token, more makes rarer ones likelier", &S::temperature, 0, 100},
  {G::kSampling, "top-k", "K", "", "sample among the K best tokens", &S::top_k, 1, 1e9},
  {G::kSampling, "top-p", "P", "1", "sample among the best tokens that together have this probability", &S::top_p, 1e-9, 1},
  {G::kSampling, "min-p", "P", "0", "drop tokens less likely than P times the best one", &S::min_p, 0, 0.999999},
  {G::kSampling, "repeat-penalty", "R", "1", "divide the logits of tokens already seen by R", &S::repeat_penalty, 1e-3, 10},
  {G::kSampling, "seed", "N", "0", "seed of the sampling", &S::seed, 0, 9e15},
  {G::kSampling, "stop", "TEXT", "", "end at this text; may be given several times", &S::stop, 0, 0, 0, F::kFilled},
  {G::kSampling, "ignore-end", "", "", "go on after the model's end token", &S::ignore_end},

  {G::kLogits, "ids", "1,2,3", "", "token ids to run", &S::ids, 0, 0, 0, F::kFilled},
  {G::kLogits, "ids-file", "FILE", "", "token ids to run, from a file: numbers, or the JSON of kvant tokenize", &S::ids_file, 0, 0, 0, F::kFilled},
  {G::kLogits, "p,prompt", "TEXT", "", "text to run", &S::prompt},
  {G::kLogits, "prompt-file", "FILE", "", "text to run, from a file", &S::prompt_file, 0, 0, 0, F::kFilled},
  {G::kLogits, "out", "FILE", "", "where to write the float32 array [tokens, vocabulary], as .npy", &S::out, 0, 0, 0, F::kFilled},
  {G::kTokenize, "text", "TEXT", "", "the text", &S::text},
  {G::kTokenize, "text-file", "FILE", "", "the text, read from a file", &S::text_file, 0, 0, 0, F::kFilled},
  {G::kTokenize, "no-special", "", "", "don't add the BOS token and the like", &S::no_special},
  {G::kDetokenize, "ids", "1,2,3", "", "the token ids", &S::ids, 0, 0, 0, F::kFilled},
  {G::kDetokenize, "ids-file", "FILE", "", "the token ids, from a file: numbers, or the JSON of kvant tokenize", &S::ids_file, 0, 0, 0, F::kFilled},
  {G::kDetokenize, "keep-special", "", "", "print special tokens too", &S::keep_special},

  {G::kBench, "kv", "A,B,C", "f32,bf16,int8,k8v4,int4,fp8", "the formats to time, by comma", &S::kv, 0, 0, 0, F::kItems},
  {G::kBench, "heads", "N", "9", "query heads", &S::heads, 1, 1024},
  {G::kBench, "kv-heads", "N", "3", "KV heads; they divide the query heads", &S::kv_heads, 1, 1024},
  {G::kBench, "dim", "D", "64", "channels of a head", &S::dim, 16, 1024},
  {G::kBench, "tokens", "N,N", "4096", "tokens in the cache; several by comma: a batch of so many sequences", &S::token_counts, 0, 0, 0, F::kCounts},
  {G::kBench, "queries", "N", "1", "query tokens of one step: 1 times decode, more time prefill", &S::queries, 1, 65536},
  {G::kBench, "layers", "N", "8", "layers that take turns, so that a page isn't read from a core's own cache", &S::layers, 1, 1024},
  {G::kBench, "repeats", "N", "21", "rounds; the median is printed", &S::repeats, 3, 100000},
  {G::kBench, "no-peers", "", "", "leave out ggml's own attention", &S::no_peers},
  {G::kBench, "targets", "", "", "time the shapes and formats that attention has targets for, on one thread and on all, and say which are reached; --kv and the shape are the table's own", &S::targets},
  {G::kBench, "only", "A,B", "", "of --targets, the runs whose names begin so: decode, batch, prefill, decode/9x3x64", &S::only, 0, 0, 0, F::kItems},

  {G::kPlan, "tokens", "N,N", "4k,32k,128k", "lengths of a sequence, by comma; k is 1024", &S::token_counts, 0, 0, 0, F::kCounts},
  {G::kPlan, "batch", "N", "1", "sequences at once", &S::batch, 1, kManySequences},
  {G::kPlan, "beams", "N", "1", "beams or samples of each, every one with a cache of its own beside the shared prefix", &S::beams, 1, kManySequences},
  {G::kPlan, "kv", "A,B,C", "bf16,int8,k8v4,int4,int3,int2", "the formats to plan, by comma; each is a preset, a format, or K/V", &S::kv, 0, 0, 0, F::kItems},
  {G::kPlan, "all-formats", "", "", "plan every format of the registry that the model's heads can take", &S::all_formats},
  {G::kPlan, "shared-prefix", "N", "", "tokens at the start that all sequences share: whole pages of them are held once", &S::shared_prefix, 0, kManySequences, 0, F::kCounts},
  {G::kPlan, "source-tokens", "N", "", "tokens of the encoder's or the images' side, for models with cross attention (default: what the model fixes, else the length itself)", &S::source_tokens, 1, kManySequences, 0, F::kCounts},
  {G::kPlan, "tp", "N", "1", "tensor parallelism: KV heads are split over so many devices", &S::tensor_ranks, 1, 65536},
  {G::kPlan, "pp", "N", "1", "pipeline parallelism: layers are split", &S::pipeline_ranks, 1, 65536},
  {G::kPlan, "cp", "N", "1", "context parallelism: pages of every sequence are dealt out", &S::context_ranks, 1, 65536},
  {G::kDevice, "device-memory", "SIZE", "", "memory of one device, such as 24G (2^30) or 24GB (10^9): adds what fits", &S::device_memory, 0, 0, 0, F::kSize},
  {G::kDevice, "weights-dtype", "TYPE", "", "how weights are stored: f32, bf16, f16, fp8, int8, q8_0, int4, q4_0 (default: as the files beside the configuration, else as quantization_config declares, else bf16)", &S::weights_dtype, 0, 0, 0, F::kFilled},
  {G::kDevice, "parameters", "N", "", "parameters, such as 7.6B, where the configuration doesn't tell", &S::parameters, 0, 0, 0, F::kFilled},
  {G::kDevice, "workspace", "SIZE", "0", "memory that kernels and allocator take", &S::workspace, 0, 0, 0, F::kSize},
  {G::kDevice, "activation", "SIZE", "0", "memory that a step's activations take", &S::activation, 0, 0, 0, F::kSize},
  {G::kWorkload, "prompt", "AVG:P95", "", "tokens of a prompt: average and 95th percentile", &S::prompt_spread, 0, 0, 0, F::kSpread},
  {G::kWorkload, "output", "AVG:P95", "", "tokens of an answer, likewise", &S::output_spread, 0, 0, 0, F::kSpread},
  {G::kWorkload, "concurrency", "N", "1", "requests at once", &S::concurrency, 1, kManySequences},
  {G::kPlanOutput, "explain", "", "", "print the calculation, group of layers by group of layers", &S::explain},
  {G::kPlanOutput, "layers", "", "", "print every layer", &S::per_layer},
  {G::kPlanOutput, "bytes", "", "", "print exact bytes in place of MB and GB", &S::exact_bytes},

  {G::kCalibrate, "data", "FILE,FILE", "", "the text to calibrate on: .jsonl files, a document a line with \"text\" or \"messages\", or plain text", &S::data, 0, 0, 0, F::kItems},
  {G::kCalibrate, "source", "WHERE", "dataset", "what to learn from: dataset (--data), random (tokens drawn by --seed), or fixed (nothing: scales of 1)", &S::source, 0, 0, 0, F::kOneItem},
  {G::kCalibrate, "samples", "N", "512", "documents to draw from all files together", &S::samples, 1, kManyTokens},
  {G::kCalibrate, "max-length", "N", "2048", "tokens of a document to read at most", &S::max_length, 16, kManyTokens},
  {G::kCalibrate, "buckets", "N,N", "", "lengths to cut the documents to, in turn, in place of one --max-length; what is shorter is cut to the longest that it fills, or read whole", &S::buckets, 0, 0, 0, F::kCounts},
  {G::kCalibrate, "seed", "N", "0", "seed of the draw", &S::seed, 0, 9e15},
  {G::kCalibrate, "skip-bad", "", "", "count lines that aren't documents, or that the model can't read, instead of ending at the first", &S::skip_bad},
  {G::kCalibrate, "for", "A,B,C", "tc4,tc3,tc2", "the formats to calibrate: tc4, tc3, tc2 (tc: all three), bal8, bal4, bal3, bal2, and those of given scales, fp8_e4m3, fp8_e5m2 and int8 with _tensor or _head, nvfp4_tensor, each with _rot, too", &S::formats_for, 0, 0, 0, F::kItems},
  {G::kCalibrate, "method", "HOW", "max", "scales hold the largest magnitude (max), all but a share (percentile:99.9), or have the least squared error (mse)", &S::scale_method, 0, 0, 0, F::kOneItem},
  {G::kCalibrate, "sinks", "N", "0", "tokens at the start of each document that scales needn't hold, because the cache will keep them exact, a multiple of 64; 0 for caches that keep none, as vLLM's", &S::sinks, 0, kManyTokens, 64},
  {G::kCalibrate, "held-out", "FILE,FILE", "", "other text, on which to count what the scales can't hold (default: the data itself)", &S::held_out, 0, 0, 0, F::kItems},
  {G::kCalibrate, "stability", "", "", "write nothing: a table of how far scales from 128, 512 and 1,024 documents differ", &S::stability},
  {G::kCalibrate, "resume", "", "", "go on where the same command ended, by Ctrl-C or otherwise; what it had read is kept every half minute", &S::resume},
  {G::kCalibrate, "strict", "", "", "an error, not a note, where a layer gets nothing, or where --samples is given and there are fewer documents", &S::strict},
  {G::kCalibrate, "out", "DIR", "", "where kvant-cache.safetensors is written (default: beside the model); of a Hugging Face directory with scales for fp8_e4m3 a whole checkpoint", &S::out_directory, 0, 0, 0, F::kFilled},
  {G::kCalibration, "calibration", "PATH", "", "what kvant calibrate wrote, or the directory that holds it: scales of formats that take given ones, and what the presets int4, int3 and int2 then use (default: the model's directory if it holds one; none: not even that)", &S::calibration, 0, 0, 0, F::kFilled},
  {G::kInspect, "scales", "", "", "list the scales of the cache that the checkpoint or calibration carries, layer by layer, and what is wrong with them", &S::scales},
  {G::kInspect, "strict", "", "", "with --scales: end with exit code 2 where one of them is missing or wrong", &S::strict},
  {G::kInspect, "per-head", "", "", "list the sensitivities of every KV head, too", &S::per_head},

  {G::kLoadRequests, "model", "NAME", "", "the model's name as the server knows it (default: the only one that it lists)", &S::server_model, 0, 0, 0, F::kFilled},
  {G::kLoadRequests, "input-len", "A:B,...", "512", "tokens of a prompt: a number, or a range to draw from; several by comma: one after the other", &S::input_lengths, 0, 0, 0, F::kItems},
  {G::kLoadRequests, "output-len", "N", "128", "tokens of an answer at most, or a range to draw from", &S::output_lengths, 0, 0, 0, F::kFilled},
  {G::kLoadRequests, "prompts", "FILE", "", "prompts of your own in place of random words: a line of JSON for each, with \"prompt\" or \"messages\"", &S::prompts_file, 0, 0, 0, F::kFilled},
  {G::kLoadRequests, "shared-prefix", "X", "0", "the share of each prompt's tokens that all prompts begin with", &S::shared_share, 0, 1},
  {G::kLoadRequests, "ignore-eos", "", "", "ask for answers of exactly --output-len tokens; shorter ones are failures", &S::ignore_eos},
  {G::kLoadRequests, "chat", "", "", "ask for chat completions, not for completions", &S::chat},
  {G::kLoadRequests, "seed", "N", "0", "seed of prompts, lengths and arrivals; the same seed gives the same requests in the same order", &S::seed, 0, 9e15},
  {G::kLoadRequests, "tokenizer", "MODEL", "", "a GGUF file or a Hugging Face directory whose tokenizer counts (default: the server's own counts)", &S::tokenizer, 0, 0, 0, F::kFilled},

  {G::kLoad, "concurrency", "N,N", "1", "requests at once, several by comma: one level after the other; each that ends is followed by the next", &S::concurrency_levels, 0, 0, 0, F::kItems},
  {G::kLoad, "rate", "R,R", "", "requests a second in place of a concurrency, several by comma: Poisson arrivals that don't wait for the server", &S::rates, 0, 0, 0, F::kItems},
  {G::kLoad, "duration", "S", "60", "seconds of a level in which requests are begun; those that are under way then are waited for", &S::duration, 0.01, 1e6},
  {G::kLoad, "requests", "N", "", "end a level after so many requests; without --duration after these alone", &S::requests, 1, 1e9},
  {G::kLoad, "warmup", "N", "0", "the first N requests of each level are sent, but not counted", &S::warmup, 0, 1e9},
  {G::kLoad, "timeout", "S", "600", "seconds until a request counts as failed", &S::timeout, 0.01, 1e6},
  {G::kLoad, "slo", "LIMITS", "", "limits to report goodput under: ttft=2s,itl=100ms,tpot=80ms,e2e=1m; failures=1% is for --find-max", &S::slo, 0, 0, 0, F::kFilled},
  {G::kLoad, "find-max", "", "", "search the largest concurrency whose 95th percentiles and failures keep the --slo", &S::find_max},
  {G::kLoad, "max-concurrency", "N", "1024", "where --find-max ends", &S::max_concurrency, 1, 65536},
  {G::kLoadServer, "matrix", "kv=A,B,C", "", "start kvant serve MODEL once per format, each a process of its own, and print all side by side", &S::matrix, 0, 0, 0, F::kFilled},
  {G::kLoadServer, "serve-options", "WORDS", "", "further options of kvant serve for --matrix, apart by blanks: \"--memory 2G --threads 2\"", &S::serve_options, 0, 0, 0, F::kFilled},
  {G::kLoadServer, "api-key-file", "FILE", "", "a file with the key that the server wants, sent as a bearer token", &S::api_key_file, 0, 0, 0, F::kFilled},

  {G::kServe, "host", "ADDRESS", "127.0.0.1", "the address to listen on; 0.0.0.0 is every one of the machine", &S::host, 0, 0, 0, F::kFilled},
  {G::kServe, "port", "N", "8000", "0: any that is free; the start-up log says which", &S::port, 0, 65535},
  {G::kServe, "api-key-file", "FILE", "", "keys of which a request under /v1 must bear one, a line each", &S::api_key_file, 0, 0, 0, F::kFilled},
  {G::kServe, "served-model-name", "NAME", "", "the model's name in requests (default: its file's)", &S::served_name, 0, 0, 0, F::kFilled},
  {G::kServe, "memory", "SIZE", "", "bytes of cache pages (default: nine tenths of what is available once the model is loaded)", &S::serve_memory, 0, 0, 0, F::kSize},
  {G::kServe, "pages", "N", "", "the same, as pages of 64 tokens, sealed and exact", &S::pages, 2, 1e12},
  {G::kServe, "swap-memory", "SIZE", "", "bytes of memory for answers that are swapped out when pages run out; beyond them they are computed again, to the same bits; 0: always (default: half of what is available beside --memory)", &S::swap_memory, 0, 0, 0, F::kSize},
  {G::kServe, "max-model-len", "N", "0", "tokens of a sequence, prompt and answer; 0: what the model allows", &S::context, 0, 1e9},
  {G::kServe, "max-sequences", "N", "0", "answers that are computed at once; 0: as many as fit", &S::max_sequences, 0, 1e6},
  {G::kServe, "max-queue", "N", "1024", "requests that are accepted and not ended; more are answered 429", &S::max_queue, 1, 1e9},
  {G::kServe, "prefix-cache", "on|off", "on", "keep pages of prompts for later ones that begin alike", &S::prefix_cache, 0, 0, 0, F::kFilled},
  {G::kServe, "attention-error-pages", "N", "64", "of one sealed page in N, the error of attention goes to the metric kvant:attention_error; 0: of none", &S::error_pages, 0, 1e12},
  {G::kServe, "cors", "ORIGIN", "", "let pages of this origin ask (* for any); by default browsers are kept out", &S::cors, 0, 0, 0, F::kFilled},

  {G::kJson, "json", "[=FILE]", "", "print JSON in place of the text, or write it to FILE beside the text", &S::json, 0, 0, 0, F::kOptional},
  {G::kCsv, "csv", "[=FILE]", "", "print CSV in place of the text, or write it to FILE beside the text", &S::csv, 0, 0, 0, F::kOptional},
};
// clang-format on

constexpr std::string_view kGroupTitles[] = {
    "Cache",       "Cache",    "Cache",     "Model",     "Model",     "Text",      "Prompt",
    "Prompt",      "Sampling", "Measuring", "Measuring", "Measuring", "Measuring", "Input",
    "Input",       "Input",    "Shape",     "Plan",      "Device",    "Workload",  "Output",
    "Calibration", "Cache",    "Output",    "Model",     "Requests",  "Load",      "Server",
    "Server",      "Output",   "Output"};

// Exactly the whole text as a number, or nothing: no white space, no hexadecimal, no infinity.
template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Of options whose value is a number with a unit, or several.
Status check_quantity(const OptionSpec& spec, std::string_view value) {
  if (spec.form == F::kSize) return parse_size(value).status();
  std::string items(value);
  if (spec.form == F::kSpread) {
    std::replace(items.begin(), items.end(), ':', ',');
    if (std::count(items.begin(), items.end(), ',') > 1)
      return invalid_argument(fmt::format("wanted {}", spec.metavar));
  }
  int64_t last = 0;
  for (const std::string& item : split_items(items)) {
    KVANT_ASSIGN(const int64_t count, parse_count(item));
    if (spec.form == F::kSpread && count < last)
      return invalid_argument("the 95th percentile is below the average");
    last = count;
  }
  return {};
}

// A number with one of `units` behind it, times what that stands for.
struct Unit {
  std::string_view name;
  double factor;
};
Result<double> parse_with_unit(std::string_view text, std::span<const Unit> units,
                               std::string_view wanted) {
  const auto refused = [&] { return invalid_argument(fmt::format("wanted {}", wanted)); };
  const size_t at = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::optional<double> number = parse_number<double>(text.substr(0, at));
  if (!number || !std::isfinite(*number)) return refused();
  for (const Unit& unit : units) {
    const double value = *number * unit.factor;
    if (unit.name != text.substr(at)) continue;
    return value <= 0x1p60 ? Result<double>(value) : refused();
  }
  return refused();
}

Status check_text(const OptionSpec& spec, std::string_view value) {
  const std::string name = fmt::format("--{}", spec.long_name());
  if (spec.form != F::kAny && value.empty()) {
    return invalid_argument(fmt::format("{0} is empty; wanted a value, or no {0} at all ({0} {1})",
                                        name, spec.metavar));
  }
  if (spec.form == F::kOneItem && value.find(',') != value.npos) {
    return invalid_argument(
        fmt::format("{} {}: wanted one {}; kvant compare takes a list", name, value, spec.metavar));
  }
  if (spec.form == F::kCounts || spec.form == F::kSpread || spec.form == F::kSize)
    return check_quantity(spec, value).with_context(fmt::format("{} {}", name, value));
  if (spec.form != F::kItems) return {};
  std::set<std::string> seen;
  for (const std::string& item : split_items(value)) {
    if (item.empty()) {
      return invalid_argument(
          fmt::format("{} {}: an item is empty; wanted {}", name, value, spec.metavar));
    }
    if (!seen.insert(item).second) {
      return invalid_argument(
          fmt::format("{} {}: {} is there twice; wanted it once", name, value, item));
    }
  }
  return {};
}

Status bad_number(const OptionSpec& spec, std::string_view value, std::string_view kind) {
  return invalid_argument(fmt::format("--{} {}: wanted {} from {} to {}", spec.long_name(), value,
                                      kind, spec.low, spec.high));
}

struct Assign {
  Settings& settings;
  const OptionSpec& spec;
  std::string_view value;

  Status operator()(bool Settings::*field) const {
    settings.*field = true;
    return {};
  }
  Status operator()(int64_t Settings::*field) const {
    if (spec.form == F::kCounts) {
      if (spec.low == 0 && value == "0") {
        settings.*field = 0;
        return {};
      }
      const Result<int64_t> count = parse_count(value);
      if (!count.ok())
        return count.status().with_context(fmt::format("--{} {}", spec.long_name(), value));
      settings.*field = *count;
      return {};
    }
    const std::optional<int64_t> n = parse_number<int64_t>(value);
    if (!n || static_cast<double>(*n) < spec.low || static_cast<double>(*n) > spec.high) {
      return bad_number(spec, value, "a whole number");
    }
    if (spec.multiple > 0 && *n % spec.multiple != 0) {
      return invalid_argument(
          fmt::format("--{} {}: wanted a multiple of {}", spec.long_name(), value, spec.multiple));
    }
    settings.*field = *n;
    return {};
  }
  Status operator()(double Settings::*field) const {
    const std::optional<double> x = parse_number<double>(value);
    if (!x || !std::isfinite(*x) || *x < spec.low || *x > spec.high)
      return bad_number(spec, value, "a number");
    settings.*field = *x;
    return {};
  }
  Status operator()(std::string Settings::*field) const {
    KVANT_TRY(check_text(spec, value));
    settings.*field = value;
    return {};
  }
  Status operator()(std::vector<std::string> Settings::*field) const {
    KVANT_TRY(check_text(spec, value));
    (settings.*field).emplace_back(value);
    return {};
  }
};

}  // namespace

std::string_view group_title(OptionGroup group) { return kGroupTitles[static_cast<size_t>(group)]; }

std::span<const OptionSpec> option_specs() { return kSpecs; }

std::vector<const OptionSpec*> options_of(std::span<const OptionGroup> groups) {
  std::vector<const OptionSpec*> options;
  std::set<std::string_view> names;
  for (OptionGroup group : groups) {
    for (const OptionSpec& spec : kSpecs) {
      if (spec.group == group && names.insert(spec.long_name()).second) options.push_back(&spec);
    }
  }
  return options;
}

Settings default_settings(std::span<const OptionGroup> groups) {
  Settings settings;
  for (const OptionSpec* spec : options_of(groups)) {
    if (spec->fallback.empty()) continue;
    const Status status = std::visit(Assign{settings, *spec, spec->fallback}, spec->field);
    assert(status.ok());  // a test parses every row's default
    (void)status;
  }
  return settings;
}

Status set_option(Settings& settings, const OptionSpec& spec, std::string_view value) {
  KVANT_TRY(std::visit(Assign{settings, spec, value}, spec.field));
  settings.given.insert(std::string(spec.long_name()));
  return {};
}

Status check_settings(const Settings& s) {
  if (s.chunk % 64 != 0 && !s.invariant) {
    return invalid_argument(
        fmt::format("--chunk {}: wanted a multiple of 64, or --invariant beside it (only then "
                    "every chunk size gives the same bits)",
                    s.chunk));
  }
  // Threads beyond the processors only spin for one another; a few more are allowed, to show that
  // their number changes no result.
  const int cpus = ThreadPool::available_cpus();
  if (s.threads > 4 * cpus) {
    return invalid_argument(
        fmt::format("--threads {}: this process may use {} processors, wanted at most {} threads",
                    s.threads, cpus, 4 * cpus));
  }
  if (!s.json.empty() && s.json == s.csv) {
    return invalid_argument(
        fmt::format("--json and --csv both go to {}; wanted a file of its own for one of them",
                    s.json == "-" ? "the output" : s.json));
  }
  return {};
}

Result<int64_t> parse_count(std::string_view text) {
  static constexpr Unit kUnits[] = {
      {"", 1}, {"k", 1024}, {"K", 1024}, {"m", 1 << 20}, {"M", 1 << 20}};
  constexpr double kMost = 1LL << 40;
  constexpr std::string_view kWanted =
      "a number of tokens from 1 to 2^40, such as 4096, 4k or 1M (k is 1024)";
  KVANT_ASSIGN(const double value, parse_with_unit(text, kUnits, kWanted));
  if (value < 1 || value > kMost || value != std::floor(value))
    return invalid_argument(fmt::format("wanted {}", kWanted));
  return static_cast<int64_t>(value);
}

Result<uint64_t> parse_size(std::string_view text) {
  static constexpr Unit kUnits[] = {
      {"", 1},         {"k", 0x1p10},   {"m", 0x1p20},   {"g", 0x1p30},   {"t", 0x1p40},
      {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}, {"kb", 1e3},
      {"mb", 1e6},     {"gb", 1e9},     {"tb", 1e12},    {"b", 1}};
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  KVANT_ASSIGN(const double value,
               parse_with_unit(lower, kUnits,
                               "a size up to 2^60 bytes, such as 24G (2^30 bytes each), 24GB "
                               "(10^9) or a number of bytes"));
  return static_cast<uint64_t>(value);
}

Result<int64_t> parse_amount(std::string_view text) {
  static constexpr Unit kUnits[] = {{"", 1},    {"k", 1e3}, {"K", 1e3}, {"m", 1e6},
                                    {"M", 1e6}, {"b", 1e9}, {"B", 1e9}, {"T", 1e12}};
  constexpr double kMost = 1e15;
  constexpr std::string_view kWanted = "a number up to 1000T, such as 135M, 7.6B or 1.5T";
  KVANT_ASSIGN(const double value, parse_with_unit(text, kUnits, kWanted));
  if (value < 1 || value > kMost) return invalid_argument(fmt::format("wanted {}", kWanted));
  return static_cast<int64_t>(value);
}

std::vector<std::string> split_items(std::string_view list) {
  std::vector<std::string> items;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    items.emplace_back(list.substr(at, end - at));
    at = end + 1;
  }
  return items;
}

Result<std::vector<int32_t>> parse_ids(std::string_view text) {
  constexpr std::string_view kBetween = ", \t\r\n[]";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kBetween); at != text.npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const std::optional<int32_t> id = parse_number<int32_t>(word);
    if (!id || *id < 0) {
      return invalid_argument(fmt::format(
          "\"{}\" is no token id; wanted whole numbers apart by commas", word.substr(0, 40)));
    }
    ids.push_back(*id);
    at = text.find_first_not_of(kBetween, end);
  }
  if (ids.empty()) return invalid_argument("the list of token ids is empty");
  return ids;
}

}  // namespace kvant
