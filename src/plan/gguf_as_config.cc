#include "plan/gguf_as_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "files/mapped_file.h"

namespace kvant {
namespace {

// "name": value, …
class Fields {
 public:
  void put(std::string_view name, int64_t value) { put_raw(name, std::to_string(value)); }
  void put(std::string_view name, std::string_view value) {
    std::string text;
    for (const char c : value) text += c < ' ' || c > '~' || c == '"' || c == '\\' ? '?' : c;
    put_raw(name, '"' + text + '"');
  }
  template <typename T>
  void put(std::string_view name, const std::vector<T>& values) {
    Fields list;
    for (const T& value : values) list.put("", value);
    put_raw(name, '[' + list.text_ + ']');
  }
  void put_raw(std::string_view name, const std::string& value) {
    if (!text_.empty()) text_ += ',';
    if (!name.empty()) text_ += '"' + std::string(name) + "\":";
    text_ += value;
  }
  std::string object() const { return '{' + text_ + '}'; }

 private:
  std::string text_;
};

// Keys of one architecture, and the fields that they become.
class Translation {
 public:
  Translation(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {
    for (const std::string_view key : file.keys()) keys_.insert(key);
  }

  Fields& fields() { return fields_; }
  std::string key(std::string_view name) const { return architecture_ + "." + std::string(name); }

  Result<std::optional<int64_t>> integer(std::string_view name) const {
    const std::optional<int64_t> value = file_.integer(key(name));
    if (!value && keys_.count(key(name)) > 0) return wrong(name, "an integer");
    return value;
  }
  // One value for all layers is a list of one.
  Result<std::vector<int64_t>> integers(std::string_view name) const {
    const std::optional<std::vector<int64_t>> list = file_.integers(key(name));
    if (list) return *list;
    KVANT_ASSIGN(const std::optional<int64_t> value, integer(name));
    return value ? std::vector<int64_t>{*value} : std::vector<int64_t>();
  }
  Status copy(std::string_view name, std::string_view field) {
    KVANT_ASSIGN(const std::optional<int64_t> value, integer(name));
    if (value) fields_.put(field, *value);
    return {};
  }
  Status copy_scaling();

  Status wrong(std::string_view name, std::string_view wanted) const {
    return corrupt(file_.path().string() + ": " + key(name) + ": of another type than " +
                   std::string(wanted));
  }

 private:
  const GgufFile& file_;
  std::string architecture_;
  std::set<std::string_view> keys_;
  Fields fields_;
};

Status Translation::copy_scaling() {
  const std::string_view kind = file_.string(key("rope.scaling.type")).value_or("none");
  if (kind == "none") return {};
  Fields scaling;
  scaling.put("type", kind);
  const std::optional<double> factor = file_.number(key("rope.scaling.factor"));
  if (factor && std::isfinite(*factor)) scaling.put_raw("factor", std::to_string(*factor));
  KVANT_ASSIGN(const auto original, integer("rope.scaling.original_context_length"));
  if (original) scaling.put("original_max_position_embeddings", *original);
  fields_.put_raw("rope_scaling", scaling.object());
  return {};
}

int64_t greatest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// Heads that differ by layer are a list; without any in a layer, it has no attention.
Status copy_heads(Translation& t) {
  KVANT_ASSIGN(const std::vector<int64_t> query, t.integers("attention.head_count"));
  KVANT_ASSIGN(const std::vector<int64_t> kv, t.integers("attention.head_count_kv"));
  if (!query.empty()) t.fields().put("num_attention_heads", greatest(query));
  const bool alike = std::count(kv.begin(), kv.end(), greatest(kv)) == std::ssize(kv);
  if (alike && !kv.empty()) t.fields().put("num_key_value_heads", kv[0]);
  if (!alike) t.fields().put("num_key_value_heads", kv);
  return {};
}

// Fields that hybrid models have instead of a list of heads: which layers have attention.
Status copy_layer_types(Translation& t, std::string_view without_attention) {
  KVANT_ASSIGN(const std::vector<int64_t> query, t.integers("attention.head_count"));
  KVANT_ASSIGN(const std::vector<int64_t> kv, t.integers("attention.head_count_kv"));
  if (!query.empty()) t.fields().put("num_attention_heads", greatest(query));
  t.fields().put("num_key_value_heads", greatest(kv));
  if (kv.size() < 2) return {};
  std::vector<std::string_view> types;
  for (const int64_t heads : kv)
    types.push_back(heads > 0 ? std::string_view("full_attention") : without_attention);
  t.fields().put("layer_types", types);
  return {};
}

Status copy_states(Translation& t) {
  KVANT_TRY(t.copy("ssm.state_size", "mamba_d_state"));
  KVANT_TRY(t.copy("ssm.conv_kernel", "mamba_d_conv"));
  KVANT_TRY(t.copy("ssm.group_count", "mamba_n_groups"));
  KVANT_ASSIGN(const auto channels, t.integer("ssm.inner_size"));
  KVANT_ASSIGN(const auto hidden, t.integer("embedding_length"));
  if (!channels || !hidden || *hidden < 1 || *channels % *hidden != 0)
    return t.wrong("ssm.inner_size", "a multiple of embedding_length");
  t.fields().put("mamba_expand", *channels / *hidden);
  return {};
}

// --- One function for each way of being unlike a standard decoder ---

Status standard(Translation& t) {
  KVANT_TRY(copy_heads(t));
  KVANT_TRY(t.copy("ssm.state_size", "ssm_state_size"));
  return t.copy("attention.kv_lora_rank", "kv_lora_rank");
}

Status falcon(Translation& t) {
  t.fields().put_raw("new_decoder_architecture", "true");
  return copy_heads(t);
}

Status latent(Translation& t) {
  KVANT_ASSIGN(const std::vector<int64_t> query, t.integers("attention.head_count"));
  if (!query.empty()) t.fields().put("num_attention_heads", greatest(query));
  KVANT_TRY(t.copy("attention.kv_lora_rank", "kv_lora_rank"));
  KVANT_TRY(t.copy("attention.q_lora_rank", "q_lora_rank"));
  KVANT_TRY(t.copy("attention.indexer.key_length", "index_head_dim"));
  return t.copy("rope.dimension_count", "qk_rope_head_dim");
}

Status llama4(Translation& t) {
  t.fields().put("attention_chunk_size", 8192);  // files don't say; llama.cpp takes the same
  return copy_heads(t);
}

Status gemma3n(Translation& t) {
  KVANT_TRY(t.copy("attention.shared_kv_layers", "num_kv_shared_layers"));
  return copy_heads(t);
}

Status mamba(Translation& t) {
  KVANT_ASSIGN(const auto channels, t.integer("ssm.inner_size"));
  KVANT_ASSIGN(const auto hidden, t.integer("embedding_length"));
  KVANT_ASSIGN(const auto heads, t.integer("ssm.time_step_rank"));
  if (!channels || !hidden || *hidden < 1 || *channels % *hidden != 0)
    return t.wrong("ssm.inner_size", "a multiple of embedding_length");
  t.fields().put("expand", *channels / *hidden);
  if (heads && *heads > 0) {
    t.fields().put("num_heads", *heads);
    t.fields().put("head_dim", *channels / *heads);
  }
  KVANT_TRY(t.copy("ssm.group_count", "n_groups"));
  KVANT_TRY(t.copy("ssm.conv_kernel", "conv_kernel"));
  return t.copy("ssm.state_size", "state_size");
}

Status jamba(Translation& t) {
  KVANT_TRY(copy_layer_types(t, "mamba"));
  return copy_states(t);
}

Status granite_hybrid(Translation& t) {
  KVANT_TRY(t.copy("ssm.time_step_rank", "mamba_n_heads"));
  return jamba(t);
}

Status falcon_h1(Translation& t) {
  KVANT_TRY(copy_heads(t));
  KVANT_TRY(t.copy("ssm.time_step_rank", "mamba_n_heads"));
  KVANT_TRY(t.copy("ssm.inner_size", "mamba_d_ssm"));
  KVANT_TRY(t.copy("ssm.state_size", "mamba_d_state"));
  KVANT_TRY(t.copy("ssm.conv_kernel", "mamba_d_conv"));
  return t.copy("ssm.group_count", "mamba_n_groups");
}

// Layers with neither heads nor a feed-forward part are Mamba-2.
Status nemotron_h(Translation& t) {
  KVANT_ASSIGN(const std::vector<int64_t> query, t.integers("attention.head_count"));
  KVANT_ASSIGN(const std::vector<int64_t> kv, t.integers("attention.head_count_kv"));
  KVANT_ASSIGN(const std::vector<int64_t> ffn, t.integers("feed_forward_length"));
  t.fields().put("num_attention_heads", greatest(query));
  t.fields().put("num_key_value_heads", greatest(kv));
  std::string pattern;
  for (size_t i = 0; i < kv.size(); ++i) {
    const bool dense = i < ffn.size() && ffn[i] > 0;
    pattern += kv[i] > 0 ? '*' : dense ? '-' : 'M';
  }
  t.fields().put("hybrid_override_pattern", pattern);
  KVANT_ASSIGN(const auto channels, t.integer("ssm.inner_size"));
  KVANT_ASSIGN(const auto heads, t.integer("ssm.time_step_rank"));
  if (!channels || !heads || *heads < 1) return t.wrong("ssm.time_step_rank", "a number of heads");
  t.fields().put("mamba_num_heads", *heads);
  t.fields().put("mamba_head_dim", *channels / *heads);
  KVANT_TRY(t.copy("ssm.state_size", "ssm_state_size"));
  KVANT_TRY(t.copy("ssm.conv_kernel", "conv_kernel"));
  return t.copy("ssm.group_count", "n_groups");
}

Status gated_delta(Translation& t) {
  KVANT_TRY(copy_heads(t));
  KVANT_ASSIGN(const auto channels, t.integer("ssm.inner_size"));
  KVANT_ASSIGN(const auto heads, t.integer("ssm.time_step_rank"));
  if (!channels || !heads || *heads < 1) return t.wrong("ssm.time_step_rank", "a number of heads");
  t.fields().put("linear_num_value_heads", *heads);
  t.fields().put("linear_value_head_dim", *channels / *heads);
  KVANT_TRY(t.copy("ssm.group_count", "linear_num_key_heads"));
  KVANT_TRY(t.copy("ssm.state_size", "linear_key_head_dim"));
  KVANT_TRY(t.copy("full_attention_interval", "full_attention_interval"));
  return t.copy("ssm.conv_kernel", "linear_conv_kernel_dim");
}

Status lfm2(Translation& t) {
  KVANT_TRY(copy_layer_types(t, "conv"));
  return t.copy("shortconv.l_cache", "conv_L_cache");
}

Status t5(Translation& t) {
  KVANT_TRY(copy_heads(t));
  KVANT_TRY(t.copy("attention.key_length", "d_kv"));
  return t.copy("decoder_block_count", "num_decoder_layers");
}

// general.architecture, the model_type whose reader reads it, and its function. What isn't listed
// keeps its name and is a standard decoder.
struct GgufRow {
  std::string_view architecture;
  std::string_view model_type;
  Status (*translate)(Translation& t) = standard;
};
constexpr GgufRow kRows[] = {
    {"baichuan", "baichuan"},
    {"bert", "bert"},
    {"bloom", "bloom"},
    {"chatglm", "glm"},
    {"cohere2", "cohere2"},
    {"command-r", "cohere"},
    {"dbrx", "llama"},
    {"deci", "llama"},
    {"deepseek", "deepseek"},
    {"deepseek2", "deepseek_v2", latent},
    {"dots1", "dots1"},
    {"ernie4_5", "ernie4_5"},
    {"exaone", "exaone"},
    {"exaone4", "exaone4"},
    {"falcon", "falcon", falcon},
    {"falcon-h1", "falcon_h1", falcon_h1},
    {"gemma", "gemma"},
    {"gemma2", "gemma2"},
    {"gemma3", "gemma3_text"},
    {"gemma3n", "gemma3n_text", gemma3n},
    {"glm-dsa", "glm_moe_dsa", latent},
    {"glm4", "glm4"},
    {"glm4moe", "glm4_moe"},
    {"gpt-oss", "gpt_oss"},
    {"gpt2", "gpt2"},
    {"gptj", "gptj"},
    {"gptneox", "gpt_neox"},
    {"granite", "granite"},
    {"granitehybrid", "granitemoehybrid", granite_hybrid},
    {"granitemoe", "granitemoe"},
    {"hunyuan-dense", "hunyuan_v1_dense"},
    {"internlm2", "internlm2"},
    {"jamba", "jamba", jamba},
    {"lfm2", "lfm2", lfm2},
    {"lfm2moe", "lfm2_moe", lfm2},
    {"llama", "llama"},
    {"llama4", "llama4_text", llama4},
    {"mamba", "mamba", mamba},
    {"mamba2", "mamba2", mamba},
    {"minicpm", "minicpm"},
    {"minicpm3", "minicpm3", latent},
    {"minimax-m2", "minimax_m2"},
    {"mistral3", "ministral3"},
    {"mpt", "llama"},
    {"nemotron", "nemotron"},
    {"nemotron_h", "nemotron_h", nemotron_h},
    {"nemotron_h_moe", "nemotron_h", nemotron_h},
    {"nomic-bert", "nomic_bert"},
    {"olmo", "olmo"},
    {"olmo2", "olmo3"},
    {"olmoe", "olmoe"},
    {"orion", "orion"},
    {"phi2", "phi"},
    {"phi3", "phi3"},
    {"phimoe", "phimoe"},
    {"qwen", "qwen"},
    {"qwen2", "qwen2"},
    {"qwen2moe", "qwen2_moe"},
    {"qwen2vl", "qwen2_vl"},
    {"qwen3", "qwen3"},
    {"qwen35", "qwen3_5_text", gated_delta},
    {"qwen35moe", "qwen3_5_moe_text", gated_delta},
    {"qwen3moe", "qwen3_moe"},
    {"qwen3next", "qwen3_next", gated_delta},
    {"qwen3vl", "qwen3_vl_text"},
    {"qwen3vlmoe", "qwen3_vl_moe_text"},
    {"seed_oss", "seed_oss"},
    {"smollm3", "smollm3"},
    {"stablelm", "stablelm"},
    {"starcoder", "gpt_neox"},
    {"starcoder2", "starcoder2"},
    {"t5", "t5", t5},
    {"xverse", "xverse"},
};

// Fields that all architectures have.
Status copy_common(Translation& t) {
  // What predicts further tokens is counted among the blocks.
  KVANT_ASSIGN(const auto blocks, t.integer("block_count"));
  KVANT_ASSIGN(const auto extra, t.integer("nextn_predict_layers"));
  if (blocks) t.fields().put("num_hidden_layers", *blocks - extra.value_or(0));
  KVANT_TRY(t.copy("embedding_length", "hidden_size"));
  KVANT_TRY(t.copy("context_length", "max_position_embeddings"));
  KVANT_ASSIGN(const auto window, t.integer("attention.sliding_window"));
  // Absent is none here, whatever the class takes.
  t.fields().put_raw("sliding_window", window ? std::to_string(*window) : "null");
  return t.copy_scaling();
}

// Without a width it is hidden size / heads, whatever the model's class takes.
Status copy_head_dims(Translation& t) {
  KVANT_ASSIGN(const auto width, t.integer("attention.key_length"));
  t.fields().put_raw("head_dim", width ? std::to_string(*width) : "null");
  return t.copy("attention.value_length", "v_head_dim");
}

}  // namespace

Result<std::string> gguf_as_config(const GgufFile& file) {
  constexpr std::string_view kKey = "general.architecture";
  const std::optional<std::string_view> architecture = file.string(kKey);
  if (!architecture)
    return corrupt(file.path().string() + ": " + std::string(kKey) + " is missing");
  Translation t(file, std::string(*architecture));
  const GgufRow* row = std::find_if(std::begin(kRows), std::end(kRows), [&](const GgufRow& r) {
    return r.architecture == *architecture;
  });
  const GgufRow standard_row = {*architecture, *architecture};
  if (row == std::end(kRows)) row = &standard_row;
  t.fields().put("model_type", row->model_type);
  KVANT_TRY(copy_common(t));
  KVANT_TRY(row->translate(t));
  if (row->translate != latent && row->translate != mamba) KVANT_TRY(copy_head_dims(t));
  return t.fields().object();
}

}  // namespace kvant
