// Planner: the exact bytes of any model's KV cache, from its configuration alone, before anything
// runs.
//
//   read_model_shape()  config.json, a Hugging Face directory or a GGUF file → ModelShape
//   shard_model()       ModelShape → what one device of each pipeline stage holds
//   CachePlanner        ModelShape × format → bytes at any length, by the arithmetic of the pool
//   plan_model()        all of it: formats × lengths, devices, a workload
//
// Sizes are bytes unless a name says otherwise, lengths are tokens. Pages hold 64 tokens, so a
// cache's size is a staircase; every capacity is found on the staircase itself, never by division.
// The simplest case is the classical formula: without windows, latents, scales and open pages,
// bytes = 2 · layers · sequences · tokens · kv_heads · head_dim · bytes per element.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/format.h"
#include "kvant/status.h"

namespace kvant {

// --- What a model keeps between tokens ---

enum class StreamKind : uint8_t {
  kFull,        // K and V of every token
  kSliding,     // K and V of the last `window` tokens
  kChunked,     // K and V of the query's own chunk of `window` tokens; counted as a window, since
                // up to a whole chunk is held, whose last query sees all of it
  kLatent,      // multi-head latent attention: one stream; V is a range of K
  kCompressed,  // one entry for every `tokens_per_entry` tokens
  kIndexer,     // keys of a sparse-attention indexer: K only
  kCross,       // K and V of the encoder's or the image's tokens: as long as the source
};
std::string_view stream_kind_name(StreamKind kind);  // "full", "sliding", …

// Rows that a layer appends for its tokens.
struct CacheStream {
  StreamKind kind = StreamKind::kFull;
  int heads = 0;
  int k_dim = 0;
  int v_dim = 0;       // 0: nothing beside K is stored
  int64_t window = 0;  // tokens that a query sees, itself included; 0: all
  int tokens_per_entry = 1;

  // Values that one entry adds.
  int64_t entry_elements() const { return int64_t{heads} * (k_dim + v_dim); }
  // Streams without V, and what a kernel takes whole, stay exact whatever is asked.
  bool quantizable() const { return v_dim > 0 && tokens_per_entry == 1; }
  bool operator==(const CacheStream&) const = default;
};

// What a layer keeps however long the sequence is: state-space, linear-attention and
// short-convolution layers.
struct ConstantState {
  int64_t recurrent_elements = 0;
  int64_t conv_elements = 0;
  int heads = 0;  // that tensor parallelism may split; 0: every rank holds all of it
  int recurrent_bytes = 4, conv_bytes = 2;  // of an element
  bool is_empty() const { return recurrent_elements == 0 && conv_elements == 0; }
  uint64_t bytes() const {
    return static_cast<uint64_t>(recurrent_elements * recurrent_bytes + conv_elements * conv_bytes);
  }
  bool operator==(const ConstantState&) const = default;
};

struct ModelLayer {
  std::vector<CacheStream> streams;  // the first is the one that formats apply to; empty: none
  ConstantState state;
  int shares = -1;  // an earlier layer, whose cache this one reads instead of having its own
  bool operator==(const ModelLayer&) const = default;
};

// Parameters that may be stored in other bits than the rest, or that stand at the ends of the
// model.
struct ParameterParts {
  int64_t experts = 0;     // routed ones
  int64_t embeddings = 0;  // of the input
  int64_t output = 0;      // the matrix before the logits
  bool tied = false;       // it is the embeddings, counted once
};

// How a configuration says that the weights are stored.
struct DeclaredWeights {
  std::string method;         // "fp8", "gptq 4 bit"; empty: nothing is declared
  double bits = 0;            // of a parameter, with scales; 0: the method isn't known
  bool experts_only = false;  // the rest is bf16; without it only embeddings and output are
};

struct ModelShape {
  std::string source;        // the path, or what it was called
  std::string architecture;  // model_type
  std::vector<ModelLayer> layers;
  int num_query_heads = 0;
  std::string head_dim_from;   // "declared", "hidden size 4096 / 32 heads"; empty: of another field
  int64_t max_positions = 0;   // 0: the configuration doesn't say
  int64_t source_tokens = 0;   // of cross attention, where the configuration fixes it
  int64_t num_parameters = 0;  // of the language model; 0: not known from what was read
  ParameterParts parts;
  DeclaredWeights declared_weights;
  uint64_t weight_bytes = 0;  // of the shards or the GGUF's tensors; 0: no weights beside it
  ModelTraits traits;
  // Of each layer the formats that need a calibration and have one; empty: none has.
  std::vector<std::vector<std::string>> calibrated = {};
  // What was assumed, derived or can't be seen from the configuration: one sentence each.
  std::vector<std::string> notes;
};

// `path`: a directory with config.json, that config.json (the sizes of the weight files beside it
// count either way), one of another name, or a GGUF file. No weights are read. corrupt
// or unsupported with file and field for a configuration whose cache can't be known.
Result<ModelShape> read_model_shape(const std::filesystem::path& path);
// The same for the text of a config.json; `name` stands for the file in messages.
Result<ModelShape> parse_model_shape(std::string_view config_json, std::string_view name);

// --- Devices ---

// Ranks: tensor × pipeline × context.
struct Sharding {
  int tensor = 1;
  int pipeline = 1;
  int context = 1;
  int64_t devices() const { return int64_t{tensor} * pipeline * context; }
};

// What every device of one pipeline stage holds: its layers, and of each its share of the heads.
struct ModelStage {
  ModelShape shape;
  int first_layer = 0;
};
// One stage per pipeline rank. Layers are spread evenly, earlier stages taking one more where they
// don't divide; KV heads are split over the tensor ranks, or replicated where there are fewer of
// them (a note says so). invalid_argument, with the sizes that work, for heads that don't divide.
Result<std::vector<ModelStage>> shard_model(const ModelShape& shape, const Sharding& sharding);

// --- One format ---

// The formats of every layer, as `--kv` and `--kv-layers` name them; layers that can't take theirs
// stay exact with a note, or are refused, as resolve_formats() says.
Result<ResolvedFormats> resolve_model_formats(const ModelShape& shape, std::string_view kv,
                                              std::string_view kv_layers, bool strict);

struct PlanOptions {
  int sinks = 64;  // as CacheOptions
  int exact_window = 0;
  // Of every sequence the sealed pages, and the exact ones, are dealt out to so many devices; bytes
  // are those of the first, which is the fullest. 1: all of them together.
  int context_ranks = 1;
  int64_t step_tokens = 512;  // appended at most in one step: prefill chunks
};

// Sequences that a cache holds at once, all of one length.
struct SequenceSet {
  int64_t tokens = 0;
  int64_t sequences = 1;      // batch × beams
  int64_t shared_prefix = 0;  // tokens at the start that all of them share; whole pages count
  int64_t source_tokens = 0;  // of cross attention
};

// Bytes on one device.
struct CacheBytes {
  uint64_t sealed = 0;
  uint64_t exact = 0;
  uint64_t state = 0;  // constant state
  uint64_t ideal = 0;  // the tokens' own K and V in bf16, unpadded: what a perfect bf16 cache holds
  // What the pool needs so that all may grow to this length: while a page is being sealed its rows
  // live beside its codes, and one sequence at a time is prefilled in steps.
  uint64_t needed = 0;
  uint64_t kv() const { return sealed + exact; }
  // Bits held per element that a query can see: codes, scales, sinks, open pages. 0: nothing is.
  // Of one copy of the cache: what tensor ranks replicate is for PlanRow to leave out.
  double effective_bits() const {
    return ideal == 0 ? 0 : 16 * static_cast<double>(kv()) / static_cast<double>(ideal);
  }
};

// Bytes of one page of one head.
struct PageParts {
  uint64_t key = 0;
  uint64_t value = 0;
  uint64_t before_rope = 0;  // K before RoPE, beside exact pages of formats that ask for it
};

// Layers that have one stream, state and formats in common.
struct PlannedGroup {
  CacheStream stream;
  FormatPair formats;
  std::vector<int> layers;
  bool seals = false;
  bool slides = false;       // the window is shorter than what the model is made for
  uint64_t sealed_page = 0;  // bytes of 64 entries of all layers and heads of the group
  uint64_t exact_page = 0;
  PageParts sealed_parts, exact_parts;
  double key_bits = 0, value_bits = 0;  // per element of a page at length

  // Of one more token of the text: nothing where the stream is as long as a source.
  double bytes_per_token() const {
    if (stream.kind == StreamKind::kCross) return 0;
    return static_cast<double>(seals ? sealed_page : exact_page) /
           (double{kPageTokens} * stream.tokens_per_entry);
  }
};

struct HeldPages {
  int64_t sealed = 0;
  int64_t exact = 0;
};
struct GroupPages {
  HeldPages first, further;
  // At the peak on the way to this length: of the sequence that is prefilled in steps of
  // `step_tokens`, and of each other one, which grows by one token and counts on what all share.
  HeldPages filling, growing;
  // Entries that a query sees, of the first sequence and of each further one.
  int64_t seen = 0, further_seen = 0;
};

// Layers with the same constant state.
struct StateGroup {
  ConstantState state;
  std::vector<int> layers;
};

// Bits per element: means over K, over V and over both, weighted by what a token adds.
struct SideBits {
  double key = 0, value = 0, both = 0;
};

// The cache of one model in one format.
class CachePlanner {
 public:
  // `formats`: one pair for every layer of the shape. invalid_argument or unsupported for what the
  // layers can't hold.
  static Result<CachePlanner> create(const ModelShape& shape, std::span<const FormatPair> formats,
                                     const PlanOptions& options);

  // exhausted for more than 2^62 bytes.
  Result<CacheBytes> bytes(const SequenceSet& set) const;
  // The summand of one group: pages that the first sequence holds, and each further one beside what
  // all share, on one device.
  GroupPages pages(const PlannedGroup& group, const SequenceSet& set) const;
  // One more token of the text: before any window is full, and after all are.
  double bytes_per_token() const;
  double bytes_per_token_long() const;
  uint64_t state_bytes() const;  // of one sequence

  SideBits nominal_bits() const;  // as formats are named
  SideBits sealed_bits() const;   // of pages at length, with scales and padding

  // The most that fit into `bytes`, each of set.tokens and sharing set.shared_prefix; 0: not one.
  Result<int64_t> max_sequences(const SequenceSet& set, uint64_t bytes) const;
  // The greatest length up to `limit` that set.sequences of them can grow to; 0: not even one
  // token.
  Result<int64_t> max_tokens(const SequenceSet& set, uint64_t bytes, int64_t limit) const;

  std::span<const PlannedGroup> groups() const { return groups_; }
  std::span<const StateGroup> states() const { return states_; }
  const PlanOptions& options() const { return options_; }

 private:
  CachePlanner() = default;
  SideBits mean_bits(double (*bits)(const PlannedGroup&, Side)) const;
  Result<bool> fits(const SequenceSet& set, uint64_t bytes) const;

  PlanOptions options_;
  std::vector<PlannedGroup> groups_;
  std::vector<StateGroup> states_;
};

// --- All of it: what `kvant plan` prints ---

// One device.
struct DeviceMemory {
  uint64_t total = 0;
  uint64_t workspace = 0;   // of kernels and allocators, whatever the model
  uint64_t activation = 0;  // of one step
};

// Of the weights what stands at the ends of a pipeline; all the rest is counted as alike in every
// layer.
struct EndWeights {
  uint64_t embeddings = 0;  // on the first stage
  uint64_t output = 0;      // on the last stage
  bool tied = false;        // the output is the embeddings: a copy where the stages differ
};

// Bytes of the weights.
struct WeightEstimate {
  uint64_t bytes = 0;  // 0: not known
  EndWeights ends;
  std::string calculation;  // "8030261248 parameters × 16 / 8"; empty: the files' own size
  std::vector<std::string> notes;
};
// `type` is "f32", "bf16", "fp8" and the like, or empty: what the files hold, else what the
// configuration declares, else bf16. `parameters` of 0: the model's own number. invalid_argument
// for another type.
Result<WeightEstimate> estimate_weights(const ModelShape& shape, std::string_view type = {},
                                        int64_t parameters = 0);

struct LengthSpread {
  int64_t average = 0;
  int64_t p95 = 0;
};

struct Workload {
  LengthSpread prompt, output;
  int64_t concurrency = 1;  // requests at once, each of `beams` sequences
  LengthSpread total() const {
    return {.average = prompt.average + output.average, .p95 = prompt.p95 + output.p95};
  }
};

struct PlanRequest {
  std::vector<std::string> formats = {"bf16"};
  std::string kv_layers = {};
  bool strict = false;
  bool skip_refused = false;  // formats that a layer can't hold become a note, not an error
  std::vector<int64_t> tokens = {};
  int64_t batch = 1;
  int64_t beams = 1;
  int64_t shared_prefix = 0;
  int64_t source_tokens = 0;  // of cross attention; 0: what the model fixes, else as `tokens`
  PlanOptions options = {};
  Sharding sharding = {};
  std::optional<DeviceMemory> memory = {};
  uint64_t weight_bytes = 0;  // of the whole model; needed where `memory` is given
  EndWeights ends = {};
  std::string weight_calculation = {};  // how they come about, for explain_plan()
  std::optional<Workload> workload = {};
};

// So many requests of this length, as the request describes them. Numbers beyond 63 bits become
// 2^63 - 1, which CachePlanner refuses.
SequenceSet sequences_of(const ModelShape& shape, const PlanRequest& request, int64_t tokens,
                         int64_t requests);

// One format at one length.
struct PlanRow {
  std::string format;  // as asked for
  FormatPair pair;     // that most layers have
  int64_t tokens = 0;
  int64_t sequences = 0;      // batch × beams
  CacheBytes bytes;           // the sum over all devices; `ideal` of one copy
  uint64_t device_bytes = 0;  // K, V and constant state on the fullest device
  double bytes_per_token = 0;
  double bytes_per_token_long = 0;
  SideBits nominal_bits, sealed_bits;
  // Of one copy of the cache on one device: what a token costs, whatever sharding replicates.
  double effective_bits = 0;
  // Where the request gives a device: whether `needed` fits beside the weights on each, how many
  // sequences of this length do, and how long these may become (limited: by the model itself).
  std::optional<bool> fits;
  // On the device with least to spare: total = weights + workspace + activation + needed + spare.
  uint64_t device_weights = 0;
  uint64_t available_bytes = 0;  // beside its weights, workspace and activations
  uint64_t device_needed = 0;    // of CacheBytes::needed; without a device, on the fullest
  int64_t spare_bytes = 0;       // negative: so much is missing
  int64_t max_sequences = 0;
  int64_t max_context = 0;  // up to the model's own limit, unless `tokens` is beyond it
  bool context_is_models = false;
};

// A workload in one format.
struct WorkloadRow {
  PlanRow average, p95;
  // Expected gain of capacity over bf16, 1 / (1 − β + β/c) with the cache's share β of weights and
  // cache in bf16, and its compression c, both for the average request; and the exact ratio of
  // sequences that fit.
  double share = 0, compression = 1, expected_gain = 1;
  std::optional<double> exact_gain;
};

struct Plan {
  std::vector<PlanRow> rows;  // formats in the order asked for, lengths inside
  std::vector<WorkloadRow> workload;
  // The format of best quality that fits the workload's P95; "": none does. Formats that aren't
  // measured are placed by their bits, with a note.
  std::string first_fit;
  std::vector<std::string> tried;  // the formats in that order
  std::vector<std::string> notes;
};

// invalid_argument for a request that isn't one, and for caches beyond 2^62 bytes.
Result<Plan> plan_model(const ModelShape& shape, const PlanRequest& request);

// The arithmetic of one row with the model's own numbers in it, group of layers by group of layers,
// so that it can be redone on paper. `first_layer`: of the stage that the planner is for.
Result<std::string> explain_bytes(const CachePlanner& planner, const SequenceSet& set,
                                  int first_layer = 0);
// The same for every row of a plan, its devices and its workload: sums and products whose results
// are the plan's own figures.
Result<std::string> explain_plan(const ModelShape& shape, const PlanRequest& request);

// Formats that were measured on real models, best first (KLD to bf16, docs/numerics.md).
std::span<const std::string_view> formats_by_quality();

}  // namespace kvant
