#include "model/hf_config.h"

#include <algorithm>
#include <array>

#include "files/field_spelling.h"

namespace kvant {
namespace {

// Far above any real model; what a config claims beyond them is a mistake, and must not become an
// allocation.
constexpr int kMaxLayers = 4096;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxVocabulary = 1 << 24;

// Older families' names of a field.
constexpr std::array<FieldSpelling, 12> kSpellings = {{{"hidden_size", "n_embd"},
                                                       {"hidden_size", "d_model"},
                                                       {"num_attention_heads", "n_head"},
                                                       {"num_attention_heads", "n_heads"},
                                                       {"num_hidden_layers", "n_layer"},
                                                       {"num_hidden_layers", "n_layers"},
                                                       {"num_key_value_heads", "n_head_kv"},
                                                       {"num_key_value_heads", "num_kv_heads"},
                                                       {"intermediate_size", "n_inner"},
                                                       {"max_position_embeddings", "n_positions"},
                                                       {"max_position_embeddings", "n_ctx"},
                                                       {"max_position_embeddings", "max_seq_len"}}};

struct ActivationRow {
  std::string_view name;
  Activation activation;
};
constexpr std::array<ActivationRow, 4> kActivations = {
    {{"silu", Activation::kSilu},
     {"swish", Activation::kSilu},
     {"gelu_pytorch_tanh", Activation::kGeluTanh},
     {"gelu_tanh", Activation::kGeluTanh}}};

Status read_activation(const JsonObject& config, DecoderSpec& spec) {
  // Gemma's older configs carry a hidden_act that its hidden_activation corrects.
  const std::string_view key = config.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  KVANT_ASSIGN(const std::optional<std::string> name, config.string(key));
  if (!name) return {};
  for (const ActivationRow& row : kActivations) {
    if (row.name == *name) {
      spec.activation = row.activation;
      return {};
    }
  }
  return unsupported(config.where(key) + ": '" + *name + "', wanted silu or gelu_pytorch_tanh");
}

Status read_heads(const JsonObject& config, const DecoderSpec& spec, LayerSpec& layer) {
  KVANT_ASSIGN(const bool multi_query, read_bool(config, "multi_query", false));
  KVANT_ASSIGN(layer.num_kv_heads, read_int(config, "num_key_value_heads", 1, spec.num_query_heads,
                                            multi_query ? 1 : spec.num_query_heads));
  if (multi_query && layer.num_kv_heads != 1) {
    return corrupt(config.where("multi_query") + ": true, but num_key_value_heads is " +
                   std::to_string(layer.num_kv_heads));
  }
  if (spec.num_query_heads % layer.num_kv_heads != 0) {
    return corrupt(config.where("num_key_value_heads") + ": " + std::to_string(layer.num_kv_heads) +
                   ", wanted a divisor of the " + std::to_string(spec.num_query_heads) +
                   " attention heads");
  }
  KVANT_ASSIGN(int head_dim, read_int(config, "head_dim", 0, kMaxWidth, 0));
  if (head_dim == 0) {
    if (spec.hidden_size % spec.num_query_heads != 0) {
      return corrupt(config.where("hidden_size") + ": " + std::to_string(spec.hidden_size) +
                     " isn't a multiple of num_attention_heads " +
                     std::to_string(spec.num_query_heads) + ", and head_dim isn't given");
    }
    head_dim = spec.hidden_size / spec.num_query_heads;
  }
  layer.key_dim = head_dim;
  layer.value_dim = head_dim;
  return {};
}

// The object that describes a scaling, or nothing: rope_scaling, or rope_parameters (whole or of
// one layer type).
Result<std::optional<JsonObject>> scaling_object(const JsonObject& config,
                                                 std::string_view layer_type) {
  const std::string_view key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  KVANT_ASSIGN(std::optional<JsonObject> object, config.object(key));
  if (object && !layer_type.empty() && object->has(layer_type)) return object->object(layer_type);
  return object;
}

Status read_pair_factors(const JsonObject& object, const DecoderSpec& spec, RopeScaling& s) {
  const bool is_long = spec.context > s.original_positions;
  const std::string_view key = is_long ? "long_factor" : "short_factor";
  KVANT_ASSIGN(std::optional<std::vector<double>> factors, object.numbers(key));
  if (!factors) return corrupt(object.where(key) + " is missing");
  for (double factor : *factors) {
    if (!(factor > 0)) return corrupt(object.where(key) + ": a factor isn't positive");
  }
  s.pair_factors = std::move(*factors);
  return {};
}

Result<RopeScaling> read_scaling(const JsonObject& config, const JsonObject& object,
                                 DecoderSpec& spec) {
  RopeScaling s;
  const std::string_view key = object.has("rope_type") ? "rope_type" : "type";
  KVANT_ASSIGN(std::optional<std::string> kind, object.string(key));
  s.kind = kind.value_or("default");
  KVANT_ASSIGN(std::optional<int64_t> original, object.integer("original_max_position_embeddings"));
  if (!original) {
    KVANT_ASSIGN(original, config.integer("original_max_position_embeddings"));
  }
  // Transformers takes the model's own length for an original that a yarn or longrope config leaves
  // out.
  s.original_positions = original.value_or(s.kind == "llama3" ? 0 : spec.max_positions);
  if (original && *original < 1) {
    return corrupt(object.where("original_max_position_embeddings") + ": " +
                   std::to_string(*original) + ", wanted a positive number");
  }
  const double ratio =
      original ? static_cast<double>(spec.max_positions) / static_cast<double>(*original) : 1;
  KVANT_ASSIGN(s.factor, read_number(object, "factor", ratio));
  KVANT_ASSIGN(s.low_freq_factor, read_number(object, "low_freq_factor", 1));
  KVANT_ASSIGN(s.high_freq_factor, read_number(object, "high_freq_factor", 4));
  KVANT_ASSIGN(s.beta_fast, read_number(object, "beta_fast", 32));
  KVANT_ASSIGN(s.beta_slow, read_number(object, "beta_slow", 1));
  KVANT_ASSIGN(s.mscale, read_number(object, "mscale", 0));
  KVANT_ASSIGN(s.mscale_all_dim, read_number(object, "mscale_all_dim", 0));
  KVANT_ASSIGN(s.truncate, read_bool(object, "truncate", true));
  KVANT_ASSIGN(s.attention_factor, read_number(object, "attention_factor", 0));
  if (s.kind == "longrope" || s.kind == "su") {
    KVANT_TRY(read_pair_factors(object, spec, s));
    // The short factors hold for the original length only.
    if (spec.context <= s.original_positions) spec.max_positions = s.original_positions;
  } else if (s.kind == "llama3" && original && spec.max_positions > *original) {
    // Its factor says how the frequencies are bent, not how far: what is declared is final.
  } else if (original && s.factor > 1 && rope_scaling_stretches(s.kind)) {
    // The declared length may be final already: it is never multiplied.
    spec.max_positions = std::max(spec.max_positions,
                                  static_cast<int64_t>(static_cast<double>(*original) * s.factor));
  }
  return s;
}

}  // namespace

Result<int> read_int(const JsonObject& config, std::string_view name, int min, int max,
                     int fallback) {
  KVANT_ASSIGN(const std::string_view key, find_spelling(config, name, kSpellings));
  KVANT_ASSIGN(const std::optional<int64_t> value, config.integer(key));
  if (!value && fallback >= min) return fallback;
  if (!value) return corrupt(config.where(key) + " is missing");
  if (*value < min || *value > max) {
    return corrupt(config.where(key) + ": " + std::to_string(*value) + ", wanted " +
                   std::to_string(min) + " to " + std::to_string(max));
  }
  return static_cast<int>(*value);
}

Result<double> read_number(const JsonObject& config, std::string_view key, double fallback) {
  KVANT_ASSIGN(const std::optional<double> value, config.number(key));
  return value.value_or(fallback);
}

Result<bool> read_bool(const JsonObject& config, std::string_view key, bool fallback) {
  KVANT_ASSIGN(const std::optional<bool> value, config.boolean(key));
  return value.value_or(fallback);
}

Status read_hf_common(const JsonObject& config, DecoderSpec& spec) {
  KVANT_ASSIGN(spec.hidden_size, read_int(config, "hidden_size", 1, kMaxWidth));
  KVANT_ASSIGN(spec.num_query_heads, read_int(config, "num_attention_heads", 1, kMaxWidth));
  KVANT_ASSIGN(const int num_layers, read_int(config, "num_hidden_layers", 1, kMaxLayers));
  KVANT_ASSIGN(spec.vocab_size, read_int(config, "vocab_size", 1, kMaxVocabulary));
  KVANT_ASSIGN(spec.max_positions, read_int(config, "max_position_embeddings", 1, 1 << 30, 2048));
  KVANT_ASSIGN(const double epsilon, read_number(config, "rms_norm_eps", 1e-6));
  KVANT_TRY(check_positive(config.where("rms_norm_eps"), epsilon));
  spec.norm_epsilon = static_cast<float>(epsilon);
  KVANT_ASSIGN(spec.tied_embeddings,
               read_bool(config, "tie_word_embeddings", spec.tied_embeddings));
  KVANT_TRY(read_activation(config, spec));
  KVANT_ASSIGN(const std::optional<std::string> name, config.string("_name_or_path"));
  spec.name = name.value_or("");

  LayerSpec layer;
  KVANT_TRY(read_heads(config, spec, layer));
  KVANT_ASSIGN(layer.ffn_size, read_int(config, "intermediate_size", 1, kMaxWidth));
  spec.layers.assign(static_cast<size_t>(num_layers), layer);
  spec.names = TensorNames::hugging_face();
  return {};
}

Result<Rope> read_hf_rope(const JsonObject& config, DecoderSpec& spec, int head_dim,
                          std::string_view layer_type) {
  KVANT_ASSIGN(double base, read_number(config, "rope_theta", 10000));
  KVANT_ASSIGN(double part, read_number(config, "partial_rotary_factor", 1));
  KVANT_ASSIGN(const std::optional<JsonObject> object, scaling_object(config, layer_type));
  RopeScaling scaling;
  if (object) {
    KVANT_ASSIGN(base, read_number(*object, "rope_theta", base));
    KVANT_ASSIGN(part, read_number(*object, "partial_rotary_factor", part));
    KVANT_ASSIGN(scaling, read_scaling(config, *object, spec));
  }
  if (!(part > 0 && part <= 1)) {
    return corrupt(config.where("partial_rotary_factor") + ": " + std::to_string(part) +
                   ", wanted (0, 1]");
  }
  auto rope = make_rope(static_cast<int>(head_dim * part), base, scaling);
  if (!rope.ok())
    return rope.status().with_context(object ? object->where("rope_type")
                                             : config.where("rope_theta"));
  return rope;
}

Status read_hf_sliding_decoder(const JsonObject& config, int absent, DecoderSpec& spec) {
  KVANT_TRY(read_hf_common(config, spec));
  KVANT_ASSIGN(const int window, read_hf_window(config, absent));
  for (LayerSpec& layer : spec.layers) layer.window = window;
  KVANT_ASSIGN(Rope rope, read_hf_rope(config, spec, spec.layers[0].key_dim));
  spec.ropes.push_back(std::move(rope));
  return {};
}

Result<int> read_hf_window(const JsonObject& config, int absent) {
  KVANT_ASSIGN(const bool used, read_bool(config, "use_sliding_window", true));
  const bool is_there = config.has("sliding_window") || config.is_null("sliding_window");
  if (!is_there) return used ? absent : 0;
  KVANT_ASSIGN(const int window, read_int(config, "sliding_window", -1, 1 << 30, -1));
  return used && window > 0 ? window : 0;
}

Status assign_windows(const JsonObject& config, int window,
                      const std::function<bool(int layer)>& slides, DecoderSpec& spec) {
  KVANT_ASSIGN(const std::optional<std::vector<std::string>> types, config.strings("layer_types"));
  if (types && types->size() != spec.layers.size()) {
    return corrupt(config.where("layer_types") + ": " + std::to_string(types->size()) +
                   " entries, wanted " + std::to_string(spec.layers.size()));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (types && (*types)[i] != "sliding_attention" && (*types)[i] != "full_attention") {
      return unsupported(config.where("layer_types") + ": '" + (*types)[i] +
                         "', wanted sliding_attention or full_attention");
    }
    const bool sliding = types ? (*types)[i] == "sliding_attention" : slides(static_cast<int>(i));
    spec.layers[i].window = sliding ? window : 0;
  }
  return {};
}

}  // namespace kvant
