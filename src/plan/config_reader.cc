#include "plan/config_reader.h"

#include <algorithm>
#include <array>

#include "files/field_spelling.h"

namespace kvant {
namespace {

constexpr std::array<FieldSpelling, 26> kSpellings = {{
    {"hidden_size", "n_embd"},
    {"hidden_size", "n_embed"},
    {"hidden_size", "d_model"},
    {"hidden_size", "model_dim"},
    {"num_attention_heads", "n_head"},
    {"num_attention_heads", "n_heads"},
    {"num_attention_heads", "num_heads"},
    {"num_attention_heads", "num_query_heads"},
    {"num_hidden_layers", "n_layer"},
    {"num_hidden_layers", "n_layers"},
    {"num_hidden_layers", "num_layers"},
    {"num_hidden_layers", "num_transformer_layers"},
    {"num_key_value_heads", "n_head_kv"},
    {"num_key_value_heads", "num_kv_heads"},
    {"num_key_value_heads", "kv_n_heads"},
    {"num_key_value_heads", "num_attention_groups"},
    {"head_dim", "kv_channels"},
    {"head_dim", "attention_head_dim"},
    {"sliding_window", "sliding_window_size"},
    {"mamba_d_state", "state_size"},
    {"mamba_d_conv", "conv_dimension"},
    {"mamba_expand", "expansion_factor"},
    {"mamba_n_groups", "mamba_ngroups"},
    {"mamba_n_heads", "n_mamba_heads"},
    {"num_kv_shared_layers", "shared_kv_layers"},
    {"intermediate_size", "n_inner"},
}};

}  // namespace

Status out_of_range(const std::string& where, int64_t value, Range range) {
  return corrupt(where + ": " + std::to_string(value) + ", wanted " + std::to_string(range.low) +
                 " to " + std::to_string(range.high));
}

Result<std::string_view> field_spelling(const JsonObject& config, std::string_view name) {
  return find_spelling(config, name, kSpellings);
}

Result<std::optional<int64_t>> find_integer(const JsonObject& object, std::string_view key,
                                            Range range) {
  KVANT_ASSIGN(const std::optional<int64_t> value, object.integer(key));
  if (value && (*value < range.low || *value > range.high))
    return out_of_range(object.where(key), *value, range);
  return value;
}

Result<int> require_integer(const JsonObject& object, std::string_view key, Range range) {
  KVANT_ASSIGN(const std::optional<int64_t> value, find_integer(object, key, range));
  if (!value) return corrupt(object.where(key) + " is missing");
  return static_cast<int>(*value);
}

Result<std::optional<int64_t>> ConfigReader::find(std::string_view name, Range range) const {
  KVANT_ASSIGN(const std::string_view key, field_spelling(config_, name));
  return find_integer(config_, key, range);
}

Result<int> ConfigReader::require(std::string_view name, Range range) const {
  KVANT_ASSIGN(const std::optional<int64_t> value, find(name, range));
  if (!value) return corrupt(where(name) + " is missing");
  return static_cast<int>(*value);
}

Result<int> ConfigReader::get(std::string_view name, Range range, int fallback) const {
  KVANT_ASSIGN(const std::optional<int64_t> value, find(name, range));
  return static_cast<int>(value.value_or(fallback));
}

Result<int> ConfigReader::get_noted(std::string_view name, Range range, int class_value) const {
  KVANT_ASSIGN(const std::optional<int64_t> value, find(name, range));
  if (value) return static_cast<int>(*value);
  note_class_value(name, class_value);
  return class_value;
}

void ConfigReader::note_class_value(std::string_view name, int64_t value) const {
  note(std::string(name) + " isn't given: " + std::to_string(value) + ", as the class of " +
       std::string(model_type()) + " has it");
}

Result<bool> ConfigReader::boolean(std::string_view name, bool fallback) const {
  KVANT_ASSIGN(const std::optional<bool> value, config_.boolean(name));
  return value.value_or(fallback);
}

std::optional<int64_t> ConfigReader::class_default(std::string_view name, int64_t value) const {
  if (value == 0 || config_.is_null(name)) return std::nullopt;
  note_class_value(name, value);
  return value;
}

std::optional<int64_t> ConfigReader::wrapped_default(std::string_view name, int64_t value) const {
  return place_ == Place::kWrapped ? class_default(name, value) : std::nullopt;
}

Result<int> ConfigReader::size(std::string_view name, Range range, int class_value) const {
  KVANT_ASSIGN(std::optional<int64_t> value, find(name, range));
  if (!value) value = wrapped_default(name, class_value);
  if (!value) return corrupt(where(name) + " is missing");
  return static_cast<int>(*value);
}

Result<int> ConfigReader::num_layers() const {
  return size("num_hidden_layers", kLayerRange, defaults().layers);
}

Result<int> ConfigReader::hidden_size() const {
  return size("hidden_size", kHiddenRange, defaults().hidden);
}

Result<int64_t> ConfigReader::window() const {
  const bool used_unless_said = defaults().windows != Windows::kFromLayer;
  KVANT_ASSIGN(const bool used, boolean("use_sliding_window", used_unless_said));
  KVANT_ASSIGN(std::optional<int64_t> window, find("sliding_window", {-1, kWindowRange.high}));
  if (!window && used) window = class_default("sliding_window", defaults().window);
  if (!used) return 0;
  return std::max<int64_t>(window.value_or(0), 0);
}

Result<int> ConfigReader::extra_layers() const {
  int extra = 0;
  for (const char* name :
       {"num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"}) {
    KVANT_ASSIGN(const int n, get(name, {0, kLayerRange.high}, 0));
    extra = std::max(extra, n);
  }
  return extra;
}

}  // namespace kvant
