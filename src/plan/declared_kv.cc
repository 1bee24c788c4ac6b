#include "plan/declared_kv.h"

#include <algorithm>
#include <array>
#include <optional>

#include "files/mapped_file.h"

namespace kvant {
namespace {

constexpr std::string_view kFp8 = "fp8_e4m3";  // scales are one a tensor, 1 where none are given

// Names of algorithms in kv_cache_quant_algo.
struct AlgorithmRow {
  std::string_view algorithm;
  std::string_view format;
};
constexpr std::array<AlgorithmRow, 3> kAlgorithms = {{{"FP8", kFp8}, {"fp8", kFp8}, {"none", ""}}};

// In kv_cache_scheme: what one scale is for.
constexpr std::array<std::string_view, 2> kStrategies = {"tensor", "attn_head"};

Result<const FormatInfo*> format_or_none(std::string_view name) {
  if (name.empty()) return nullptr;
  return find_format(name);
}

Result<const FormatInfo*> read_algorithm(const JsonObject& object) {
  constexpr std::string_view kKey = "kv_cache_quant_algo";
  KVANT_ASSIGN(const std::optional<std::string> algorithm, object.string(kKey));
  if (!algorithm) return nullptr;
  for (const AlgorithmRow& row : kAlgorithms) {
    if (row.algorithm == *algorithm) return format_or_none(row.format);
  }
  return unsupported(object.where(kKey) + ": " + in_quotes(*algorithm) + ", wanted FP8 or null");
}

// What would make scales mean something other than one number for all tokens, zero at zero.
Status check_scheme(const JsonObject& scheme) {
  KVANT_ASSIGN(const std::optional<bool> dynamic, scheme.boolean("dynamic"));
  if (dynamic.value_or(false)) {
    return unsupported(scheme.where("dynamic") +
                       ": true, wanted false: scales that the checkpoint gives");
  }
  KVANT_ASSIGN(const std::optional<bool> symmetric, scheme.boolean("symmetric"));
  if (!symmetric.value_or(true)) {
    return unsupported(scheme.where("symmetric") + ": false, wanted true: FP8 has no zero point");
  }
  KVANT_ASSIGN(const std::optional<std::string> strategy, scheme.string("strategy"));
  if (!strategy ||
      std::find(kStrategies.begin(), kStrategies.end(), *strategy) != kStrategies.end())
    return {};
  return unsupported(scheme.where("strategy") + ": " + in_quotes(*strategy) +
                     ", wanted tensor or attn_head");
}

Result<const FormatInfo*> read_scheme(const JsonObject& scheme) {
  KVANT_ASSIGN(const std::optional<int64_t> bits, scheme.integer("num_bits"));
  KVANT_ASSIGN(const std::optional<std::string> type, scheme.string("type"));
  if (bits != 8 || type != "float") {
    return unsupported(scheme.where("num_bits") + ": " + std::to_string(bits.value_or(0)) +
                       " of type " + in_quotes(type.value_or("")) + ", wanted 8 of type \"float\"");
  }
  KVANT_TRY(check_scheme(scheme));
  return format_or_none(kFp8);
}

}  // namespace

Result<const FormatInfo*> read_declared_kv(const JsonObject& config) {
  KVANT_ASSIGN(const std::optional<JsonObject> quantization, config.object("quantization_config"));
  if (!quantization) return nullptr;
  KVANT_ASSIGN(const std::optional<JsonObject> scheme, quantization->object("kv_cache_scheme"));
  return scheme ? read_scheme(*scheme) : read_algorithm(*quantization);
}

Result<const FormatInfo*> read_declared_kv(const JsonObject& config,
                                           const std::filesystem::path& directory) {
  KVANT_ASSIGN(const FormatInfo* inside, read_declared_kv(config));
  if (inside != nullptr) return inside;
  const std::filesystem::path beside = directory / "hf_quant_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(beside, ignored)) return nullptr;
  KVANT_ASSIGN(const JsonDocument document, JsonDocument::open(beside));
  KVANT_ASSIGN(const std::optional<JsonObject> inner, document.root().object("quantization"));
  return read_algorithm(inner ? *inner : document.root());
}

}  // namespace kvant
