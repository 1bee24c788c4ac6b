#include "model/gguf_config.h"

#include <algorithm>

#include "files/mapped_file.h"
#include "model/ggml_cpu.h"

namespace kvant {
namespace {

constexpr int kMaxLayers = 4096;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxVocabulary = 1 << 24;

bool has_key(const GgufFile& file, const std::string& key) {
  const std::vector<std::string_view> keys = file.keys();
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

Status read_vocabulary(const GgufKeys& keys, DecoderSpec& spec) {
  const GgufTensor* embedding = keys.file().tensor(spec.names.weight(Tensor::kEmbedding));
  if (embedding == nullptr || embedding->dims.size() != 2) {
    return corrupt(keys.file().path().string() + ": tensor " +
                   in_quotes(spec.names.weight(Tensor::kEmbedding)) +
                   " is missing or not a matrix");
  }
  if (embedding->dims[1] > kMaxVocabulary) {
    return corrupt(keys.file().path().string() + ": a vocabulary of " +
                   std::to_string(embedding->dims[1]));
  }
  spec.vocab_size = static_cast<int>(embedding->dims[1]);
  spec.tied_embeddings = keys.file().tensor(spec.names.weight(Tensor::kOutput)) == nullptr;
  return {};
}

// Divisors of the frequencies that converters write as a tensor: those of llama3's scaling, or
// longrope's two lists.
Result<std::vector<double>> frequency_factors(const GgufFile& file, std::string_view name,
                                              int num_pairs) {
  const GgufTensor* tensor = file.tensor(name);
  if (tensor == nullptr) return std::vector<double>();
  if (tensor->dims.size() != 1 || tensor->dims[0] != static_cast<uint64_t>(num_pairs) ||
      !type_is_known(tensor->type)) {
    return corrupt(file.path().string() + ": tensor " + in_quotes(name) + ": wanted " +
                   std::to_string(num_pairs) + " numbers");
  }
  std::vector<float> floats(static_cast<size_t>(num_pairs));
  to_floats(tensor->type, tensor->data.data(), floats.data(), num_pairs);
  for (float f : floats) {
    if (!(f > 0))
      return corrupt(file.path().string() + ": tensor " + in_quotes(name) +
                     ": a factor isn't positive");
  }
  return std::vector<double>(floats.begin(), floats.end());
}

// Fills pair_factors from the list that holds for the context asked for.
Status read_longrope(const GgufKeys& keys, int num_pairs, DecoderSpec& spec, RopeScaling& scaling) {
  const bool is_long = spec.context > scaling.original_positions;
  const std::string_view name = is_long ? "rope_factors_long.weight" : "rope_factors_short.weight";
  KVANT_ASSIGN(scaling.pair_factors, frequency_factors(keys.file(), name, num_pairs));
  if (scaling.pair_factors.empty()) return {};
  scaling.kind = "longrope";
  scaling.factor =
      static_cast<double>(spec.max_positions) / static_cast<double>(scaling.original_positions);
  if (!is_long) spec.max_positions = scaling.original_positions;
  return {};
}

}  // namespace

Result<int> GgufKeys::integer(std::string_view name, int min, int max, int fallback) const {
  const std::optional<int64_t> value = file_.integer(key(name));
  if (!value) {
    if (has_key(file_, key(name))) return corrupt(where(name) + " isn't an integer");
    if (fallback >= min) return fallback;
    return corrupt(where(name) + " is missing");
  }
  if (*value < min || *value > max) {
    return corrupt(where(name) + ": " + std::to_string(*value) + ", wanted " + std::to_string(min) +
                   " to " + std::to_string(max));
  }
  return static_cast<int>(*value);
}

Result<double> GgufKeys::number(std::string_view name, double fallback) const {
  const std::optional<double> value = file_.number(key(name));
  if (value) return *value;
  if (has_key(file_, key(name))) return corrupt(where(name) + " isn't a number");
  return fallback;
}

Result<std::vector<int>> GgufKeys::per_layer(std::string_view name, int min, int max,
                                             int num_layers, int fallback) const {
  const auto n = static_cast<size_t>(num_layers);
  const std::optional<std::vector<int64_t>> list = file_.integers(key(name));
  if (!list) {
    KVANT_ASSIGN(const int value, integer(name, min, max, fallback));
    return std::vector<int>(n, value);
  }
  if (list->size() != n) {
    return corrupt(where(name) + ": " + std::to_string(list->size()) + " entries, wanted " +
                   std::to_string(n));
  }
  std::vector<int> out;
  for (int64_t value : *list) {
    if (value < min || value > max) {
      return corrupt(where(name) + ": " + std::to_string(value) + ", wanted " +
                     std::to_string(min) + " to " + std::to_string(max));
    }
    out.push_back(static_cast<int>(value));
  }
  return out;
}

Status read_gguf_common(const GgufKeys& keys, DecoderSpec& spec) {
  spec.names = TensorNames::gguf();
  spec.name = std::string(keys.file().string("general.name").value_or(""));
  KVANT_ASSIGN(spec.hidden_size, keys.integer("embedding_length", 1, kMaxWidth));
  KVANT_ASSIGN(spec.num_query_heads, keys.integer("attention.head_count", 1, kMaxWidth));
  KVANT_ASSIGN(const int num_layers, keys.integer("block_count", 1, kMaxLayers));
  KVANT_ASSIGN(spec.max_positions, keys.integer("context_length", 1, 1 << 30));
  KVANT_ASSIGN(const double epsilon, keys.number("attention.layer_norm_rms_epsilon", 1e-5));
  KVANT_TRY(check_positive(keys.where("attention.layer_norm_rms_epsilon"), epsilon));
  spec.norm_epsilon = static_cast<float>(epsilon);
  KVANT_TRY(read_vocabulary(keys, spec));

  const bool divides = spec.hidden_size % spec.num_query_heads == 0;
  KVANT_ASSIGN(const int key_dim,
               keys.integer("attention.key_length", 1, kMaxWidth,
                            divides ? spec.hidden_size / spec.num_query_heads : 0));
  KVANT_ASSIGN(const int value_dim, keys.integer("attention.value_length", 1, kMaxWidth, key_dim));
  KVANT_ASSIGN(const std::vector<int> kv_heads,
               keys.per_layer("attention.head_count_kv", 1, spec.num_query_heads, num_layers,
                              spec.num_query_heads));
  KVANT_ASSIGN(const std::vector<int> ffn,
               keys.per_layer("feed_forward_length", 1, kMaxWidth, num_layers));
  for (size_t i = 0; i < static_cast<size_t>(num_layers); ++i) {
    if (spec.num_query_heads % kv_heads[i] != 0) {
      return corrupt(keys.where("attention.head_count_kv") + ": " + std::to_string(kv_heads[i]) +
                     ", wanted a divisor of the " + std::to_string(spec.num_query_heads) +
                     " heads");
    }
    LayerSpec layer;
    layer.num_kv_heads = kv_heads[i];
    layer.key_dim = key_dim;
    layer.value_dim = value_dim;
    layer.ffn_size = ffn[i];
    spec.layers.push_back(layer);
  }
  return {};
}

Result<int> read_gguf_window(const GgufKeys& keys) {
  KVANT_ASSIGN(const int window, keys.integer("attention.sliding_window", -1, 1 << 30, -1));
  return std::max(window, 0);
}

Result<Rope> read_gguf_rope(const GgufKeys& keys, DecoderSpec& spec, RopePairing pairing,
                            double base) {
  KVANT_ASSIGN(const double freq_base, keys.number("rope.freq_base", base));
  KVANT_TRY(check_positive(keys.where("rope.freq_base"), freq_base));
  KVANT_ASSIGN(const int dims,
               keys.integer("rope.dimension_count", 2, kMaxWidth, spec.layers[0].key_dim));
  if (dims > spec.layers[0].key_dim) {
    return corrupt(keys.where("rope.dimension_count") + ": " + std::to_string(dims) +
                   ", wanted at most the head's " + std::to_string(spec.layers[0].key_dim));
  }
  RopeScaling scaling;
  const std::string_view kind = keys.file().string(keys.key("rope.scaling.type")).value_or("none");
  scaling.kind = kind == "none" ? "default" : std::string(kind);
  KVANT_ASSIGN(scaling.factor, keys.number("rope.scaling.factor", 1));
  KVANT_ASSIGN(const int original, keys.integer("rope.scaling.original_context_length", 1, 1 << 30,
                                                static_cast<int>(spec.max_positions)));
  scaling.original_positions = original;
  KVANT_ASSIGN(scaling.attention_factor, keys.number("rope.scaling.attn_factor", 0));
  KVANT_TRY(read_longrope(keys, dims / 2, spec, scaling));
  auto rope = make_rope(dims, freq_base, scaling);
  if (!rope.ok()) return rope.status().with_context(keys.where("rope"));
  KVANT_ASSIGN(const std::vector<double> factors,
               frequency_factors(keys.file(), "rope_freqs.weight", dims / 2));
  for (size_t j = 0; j < factors.size(); ++j) rope->inv_freq[j] /= static_cast<float>(factors[j]);
  rope->pairing = pairing;
  return rope;
}

}  // namespace kvant
