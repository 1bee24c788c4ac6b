// Names of weights: from what a tensor is to what a file calls it. Two dialects (Hugging Face,
// GGUF) with defaults that most families share; a family overrides the rows in which it differs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvant {

// In the order of the table in tensor_names.cc.
enum class Tensor : uint8_t {
  kEmbedding,
  kOutputNorm,
  kOutput,
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kQueryKeyValue,
  kAttentionOutput,
  kQueryNorm,
  kKeyNorm,
  kPostAttentionNorm,
  kFeedForwardNorm,
  kGate,
  kUp,
  kGateUp,
  kDown,
  kPostFeedForwardNorm,
  kRouter,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kLatentQueryDown,
  kLatentQueryNorm,
  kLatentQueryUp,
  kLatentDown,
  kLatentNorm,
  kLatentUp,     // of K and V, head by head
  kLatentKeyUp,  // or one for each, that of K transposed (GGUF)
  kLatentValueUp,
  kCount
};

class TensorNames {
 public:
  static TensorNames hugging_face();
  static TensorNames gguf();

  // `pattern` without ".weight": "{}" stands for the layer, "{e}" for the expert.
  void set(Tensor tensor, std::string pattern);
  // Puts `prefix` in front of every name ("language_model.").
  void add_prefix(std::string_view prefix);

  std::string weight(Tensor tensor, int layer = 0, int expert = 0) const;
  std::string bias(Tensor tensor, int layer = 0, int expert = 0) const;

 private:
  std::string stem(Tensor tensor, int layer, int expert) const;
  std::vector<std::string> patterns_;
};

}  // namespace kvant
