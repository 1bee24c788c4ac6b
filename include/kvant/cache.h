// KvCache: a paged, quantized KV cache for many sequences, and attention on it. No model or engine
// is needed.
//
// A sequence's cache is a list of pages of 64 tokens. Per layer a page is *exact* (K and V rows as
// given, in the side's exact type) or *sealed*: encoded once by the layer's K and V formats from
// exactly those stored rows, never again.
// **The read rule**: the query at position t reads page j sealed iff (j + 1)·64 <= floor(t / 64)·64
// − exact_window and j is not a sink page of that side; otherwise it reads exact rows. Hence what a
// query sees depends on its position only, never on how the tokens arrived: any page-aligned
// chunking, any batch and any number of threads give the same bits.
//
// Use: create_sequence(); then per step begin_step(batch), and for every layer in order append()
// and attend(); then end_step(), or abort_step(), which leaves every sequence as it was. One step
// at a time; calls come from one thread at a time (attend parallelizes inside). Functions that
// return Status change nothing when they fail.
//
// **Prefixes** (CacheOptions::prefix_cache). Whoever knows a sequence's tokens publishes its
// complete pages; they then outlive the sequence, as they are, and a later sequence that begins
// with the same tokens starts from them. Pages that only the prefix index holds are free memory in
// all but name: a step that needs room takes it from them, least recently used first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/format.h"
#include "kvant/status.h"

namespace kvant {

class ThreadPool;

// Where a layer's values come from.
enum class ValueSource : uint8_t {
  kOwnStream,  // appended beside the keys
  kKeyRange,   // channels [value_offset, value_offset + value_dim) of the K stream (MLA latent)
};

// Rotary parameters, only for formats that store K before RoPE.
struct RopeSpec {
  std::vector<float> inv_freq;  // one per pair (j, j + size)
  float attention_factor = 1.0f;
};

// Calibrated numbers of one side of a layer: of every KV head, in the order that the format
// documents.
using HeadArtifacts = std::vector<std::vector<float>>;

// The cache's view of one layer.
struct CacheLayer {
  int num_kv_heads = 0;  // 0: this layer has no cache (state-space, linear attention)
  int key_dim = 0;
  int value_dim = 0;
  ValueSource value_source = ValueSource::kOwnStream;
  int value_offset = 0;
  int window = 0;   // a query sees this many tokens, itself included; 0: all
  int shares = -1;  // index of an earlier layer whose cache this one reads; it appends nothing then
  FormatPair formats = {"bf16", "bf16"};
  float key_scale = 0;  // the given scale of a `_tensor` format; 0: none
  float value_scale = 0;
  // Given scales of a `_head` format, one per KV head; empty: every page finds its own.
  std::vector<float> key_head_scales, value_head_scales;
  // Of formats that need calibration; null: none.
  std::shared_ptr<const HeadArtifacts> key_artifacts, value_artifacts;
  RopeSpec rope;
};

inline constexpr int kStaticStepTokens = 512;

struct CacheOptions {
  std::vector<CacheLayer> layers;
  int sinks = 64;  // tokens at the start kept exact, a multiple of 64, for every quantized side; a
                   // sliding layer drops them with its window
  int exact_window = 0;  // W of the read rule, a multiple of 64
  uint64_t rotation_seed = 0;
  // Products in double from decoded pages: slow, to judge the kernels by.
  bool decode_pages = false;
  uint64_t max_bytes = 0;  // of live pages; 0: as much as the machine gives
  // Static mode: the pages that one sequence of this many tokens takes, grown by steps of at most
  // kStaticStepTokens, are allocated at once, and no more later. 0: pages come and go as they are
  // needed.
  uint64_t preallocate_tokens = 0;

  // Names what the bits of K and V depend on beside these options: the model's weights, how they
  // are multiplied, versions of libraries (model/model_identity.h). A part of identity().
  std::string model_identity = {};
  // Keeps published pages for later sequences. Refused with an exact window: a page behind it would
  // be shared sealed, where a fresh sequence reads it exact.
  bool prefix_cache = false;
  // The model computes a row alike whichever way it comes (--invariant). Otherwise only pages that
  // came as one whole block of a step are shared: a prompt's own blocks would be computed so.
  bool paths_agree = false;
};

using SequenceId = uint64_t;

struct StepItem {
  SequenceId sequence = 0;
  int num_tokens = 0;  // appended in this step, at least 1
};

// How attend() scores.
struct AttentionParams {
  int num_query_heads = 0;  // a multiple of the layer's KV heads
  float scale = 0;          // of q·k, usually 1/√key_dim
  float soft_cap = 0;       // scores become cap·tanh(score / cap); 0: none
};

// Memory of the pool, in bytes.
struct CacheUsage {
  uint64_t reserved_bytes = 0;   // taken from the system
  uint64_t live_bytes = 0;       // slabs that a sequence or the prefix index holds
  uint64_t cached_bytes = 0;     // part of live: the index alone holds them, a step may take them
  uint64_t sealed_bytes = 0;     // part of live
  uint64_t exact_bytes = 0;      // part of live
  uint64_t ideal_bytes = 0;      // the same tokens, unpadded, in bf16
  uint64_t workspace_bytes = 0;  // scratch of steps, outside the pool
  uint64_t swapped_bytes = 0;    // sequences that are swapped out to memory, outside the pool
};

// What is left to take.
struct CacheRoom {
  // Tokens to which one sequence can grow that has the pool for itself, by steps that don't go
  // beyond the end of a page; nothing: as many as come.
  std::optional<int64_t> sequence_tokens;
  // Of pages that a step can take now, those of the prefix index among them; nothing: no limit.
  std::optional<uint64_t> free_bytes;
  // One page of all layers, sealed and exact: what a sequence takes at most when it grows by one
  // page.
  uint64_t page_bytes = 0;
};

// What truncate() and fork() answer: the cache now holds `kept` tokens; the caller feeds tokens
// [kept, asked) again.
struct Rollback {
  int64_t kept = 0;
};

// Attention mass per page, filled by attend() where the caller passes it: mass[token row of the
// step][query head][page].
struct PageMass {
  std::vector<float> mass;
  int num_pages = 0;
};

class KvCache {
 public:
  // Checks formats against layers and binds the codecs. `threads` outlives the cache.
  static Result<std::unique_ptr<KvCache>> create(CacheOptions options, ThreadPool& threads);
  // The same with threads of its own; 0: as many as this process may use.
  static Result<std::unique_ptr<KvCache>> create(CacheOptions options, int num_threads);
  virtual ~KvCache() = default;

  virtual const CacheOptions& options() const = 0;

  virtual Result<SequenceId> create_sequence() = 0;
  virtual Status release_sequence(SequenceId id) = 0;
  virtual Result<int64_t> length(SequenceId id) const = 0;  // tokens

  // A new sequence with the first `tokens` tokens of `id`. Pages are shared; the open one is copied
  // when either writes to it. A cut inside a page that only exists sealed goes back to that page's
  // start, and with an exact window further, to the last page start from which every later query
  // sees what it would in a fresh sequence.
  struct Fork {
    SequenceId sequence;
    Rollback rollback;
  };
  virtual Result<Fork> fork(SequenceId id, int64_t tokens) = 0;
  // Drops tokens from the end, likewise. A sliding layer whose window has lost pages that the
  // shorter sequence needs makes the cut go back to 0.
  virtual Result<Rollback> truncate(SequenceId id, int64_t tokens) = 0;

  // --- Prefixes. `salt` names a tenant: pages are shared among equal salts only. All refuse with
  // unsupported unless CacheOptions::prefix_cache is set.
  // A new sequence that begins with the longest usable run of published pages, whole ones, that
  // `tokens` begins with; with none if there isn't any. Usable: every page that the next query sees
  // is there, in all layers. A caller that needs the logits of the last token leaves it out.
  struct PrefixHit {
    SequenceId sequence = 0;
    int64_t tokens = 0;  // that the sequence holds already
  };
  virtual Result<PrefixHit> create_from_prefix(std::span<const int32_t> tokens,
                                               std::string_view salt) = 0;
  // Publishes the sequence's complete pages, those that it hasn't yet; `tokens` are all that it
  // holds. A page that was published before by another sequence is shared from now on, and this
  // one's own is freed. Pages that a window has dropped can't be published any more: call it after
  // every step.
  virtual Status publish(SequenceId id, std::span<const int32_t> tokens, std::string_view salt) = 0;
  // Forgets every published page.
  virtual Status clear_prefixes() = 0;

  // --- Swapping. A sequence's pages leave the pool and come back bit for bit: to memory of the
  // process, or to a file, which goes with the sequence. While it is out only swap_in() and
  // release_sequence() take it, and length().
  virtual Status swap_out(SequenceId id, const std::string& file = {}) = 0;
  // exhausted where the pages don't fit now; corrupt where the file isn't what was written. It
  // stays swapped out then.
  virtual Status swap_in(SequenceId id) = 0;

  // --- One step. Rows of all items follow one another in the order of `batch`; total = Σ
  // num_tokens. exhausted if the pages don't fit: the message says how many bytes are needed and
  // free.
  virtual Status begin_step(std::span<const StepItem> batch) = 0;
  // k: [total][num_kv_heads][key_dim], v: [total][num_kv_heads][value_dim] (ignored for kKeyRange).
  // `k_pre_rope` only where the layer's K format needs it. invalid_argument with layer and position
  // if a value is NaN or infinite.
  virtual Status append(int layer, const float* k, const float* v,
                        const float* k_pre_rope = nullptr) = 0;
  // q: [total][num_query_heads][key_dim] → out: [total][num_query_heads][value_dim]. After append()
  // of the same layer.
  virtual Status attend(int layer, const float* q, const AttentionParams& params, float* out,
                        PageMass* mass = nullptr) = 0;
  virtual Status end_step() = 0;
  virtual void abort_step() = 0;

  // The rows that the cache stands for, decoded: K [num_tokens][num_kv_heads][key_dim] and V
  // likewise; for tests and error measurements. `as_seen_from` is a query position: the read rule
  // decides exact or sealed per page.
  virtual Status read(SequenceId id, int layer, int64_t first, int64_t count, int64_t as_seen_from,
                      float* k, float* v) const = 0;

  virtual CacheUsage usage() const = 0;
  virtual CacheRoom room() const = 0;
  // Bytes of pages that a sequence of so many tokens holds after a step, if it shares none.
  virtual uint64_t bytes_at(int64_t tokens) const = 0;
  // 32 hexadecimal digits over everything that the bits of a page depend on beside its tokens:
  // model_identity, shapes, formats, scales and artifacts of all layers, sinks, rotations, RoPE,
  // the instruction set's recipe, the layout of pages. What is written somewhere carries it, and
  // isn't read back under another.
  virtual const std::string& identity() const = 0;
  // Checks every invariant of pool, sequences and prefix index (reference counts, handles,
  // lengths); internal_error with the first that fails. For tests and fuzzers.
  virtual Status check_invariants() const = 0;
};

// Sizes of a cache from its options alone, by the same arithmetic that the pool uses. Bytes of
// slabs for sequences of the given lengths, after end_step().
struct CachePlan {
  uint64_t sealed_bytes = 0;
  uint64_t exact_bytes = 0;
  uint64_t total_bytes() const { return sealed_bytes + exact_bytes; }
  double effective_bits = 0;  // bits per stored element of the tokens' K and V at this length
  double sealed_bits_key = 0;
  double sealed_bits_value = 0;
};
Result<CachePlan> plan_cache(const CacheOptions& options, std::span<const int64_t> lengths);

}  // namespace kvant
