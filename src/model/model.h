// Model: a decoder's weights and its forward pass over a KvCache. One file per family beside this
// one.
//
// A model is immutable after loading, apart from scratch memory: one forward() at a time. Rows of
// full, 64-aligned blocks of a sequence go through the many-row dense path (oneDNN), all others
// through the few-row path (ggml's dot products); neither path's results depend on what else is in
// the batch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/cache.h"
#include "kvant/status.h"
#include "model/checkpoint_scales.h"
#include "model/tokenizer.h"

namespace kvant {

class ThreadPool;

struct ModelInfo;

enum class WeightType : uint8_t { kNative, kF32, kBf16, kQ8_0, kQ4_0 };
Result<WeightType> parse_weight_type(
    std::string_view name);  // "native", "f32", "bf16", "q8_0", "q4_0"

struct ModelOptions {
  WeightType weights = WeightType::kNative;
  bool invariant = false;  // few-row path everywhere: any chunk size gives the same bits
  // Tokens that sequences are meant to reach, for models whose RoPE depends on it (longrope): above
  // the length that they were trained with they take their factors for long contexts. 0: not known,
  // the short ones.
  int64_t context = 0;
  // Asked before any weight is read, with all of ModelInfo but what only the weights say
  // (weight_bytes, num_parameters, weight_types); a status that isn't OK ends the load with it.
  std::function<Status(const ModelInfo&)> accept = {};
};

// What `inspect` prints and the cache needs. Filled from config.json or GGUF metadata.
struct ModelInfo {
  std::string path;
  std::string architecture;  // "llama", "qwen3", …
  std::string name;
  int num_layers = 0;
  int hidden_size = 0;
  int num_query_heads = 0;
  int vocab_size = 0;
  int64_t max_positions = 0;
  ModelTraits traits;
  std::vector<CacheLayer> cache_layers;  // shapes, windows and RoPE; formats left at bf16
  std::vector<LayerShape> layer_shapes;  // the same for the format resolver
  UsableScales cache_scales;             // that a checkpoint carries beside its weights
  std::vector<std::string> notes;        // what was asked for and isn't so, one sentence each
  uint64_t conversion_bytes = 0;         // of weights that aren't used as they lie in the file
  uint64_t weight_bytes = 0;             // as loaded
  uint64_t num_parameters = 0;
  std::vector<std::pair<std::string, int>> weight_types;  // "Q4_1" → number of tensors
  std::string compute;  // "few rows: ggml haswell; many rows: oneDNN f32"
};

struct ForwardItem {
  SequenceId sequence = 0;
  std::span<const int32_t> tokens;
};

class Model {
 public:
  // A Hugging Face directory or a .gguf file. `threads` outlives the model.
  static Result<std::unique_ptr<Model>> load(const std::filesystem::path& path,
                                             const ModelOptions& options, ThreadPool& threads);
  virtual ~Model() = default;

  virtual const ModelInfo& info() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;

  // Appends every item's tokens to its sequence and writes the final normed hidden states, [Σ
  // tokens][hidden_size], in order. Runs one whole cache step (begin to end); on failure the step
  // is aborted and sequences are unchanged.
  virtual Status forward(KvCache& cache, std::span<const ForwardItem> items, float* hidden) = 0;

  // Logits of rows of hidden states: out [num_rows][vocab_size]. `dense` says by which path: rows
  // given as kBlock come in groups of 64 that were one full block of forward().
  enum class Dense : uint8_t { kRow, kBlock };
  virtual Status logits(const float* hidden, int num_rows, Dense dense, float* out) = 0;
};

}  // namespace kvant
