#include "plan/declared_weights.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "files/mapped_file.h"

namespace kvant {
namespace {

struct MethodRow {
  std::string_view method;
  double bits;
  bool experts_only;
};
// Methods whose bits are one number: scales of fp8 are one for 16384 values and more.
constexpr std::array<MethodRow, 3> kMethods = {
    {{"fp8", 8, false}, {"fbgemm_fp8", 8, false}, {"mxfp4", 4.25, true}}};  // 8-bit scales, 32 each

Result<int64_t> first_integer(const JsonObject& object,
                              std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    KVANT_ASSIGN(const std::optional<int64_t> value, object.integer(name));
    if (value) return *value;
  }
  return 0;
}

bool plausible(int64_t bits) { return bits >= 1 && bits <= 16; }

std::string with_bits(std::string_view method, int64_t bits) {
  return std::string(method) + " of " + std::to_string(bits) + " bits";
}

// Groups have a 16-bit scale and a zero point as wide as a value.
Result<DeclaredWeights> read_grouped(const JsonObject& object, std::string_view method) {
  KVANT_ASSIGN(const int64_t bits, first_integer(object, {"bits", "w_bit"}));
  KVANT_ASSIGN(const int64_t group, first_integer(object, {"group_size", "q_group_size"}));
  if (!plausible(bits)) return DeclaredWeights{.method = std::string(method)};
  const auto width = static_cast<double>(bits);
  const double scales = group > 0 ? (16 + width) / static_cast<double>(group) : 0;
  return DeclaredWeights{.method = with_bits(method, bits), .bits = width + scales};
}

Result<DeclaredWeights> read_bitsandbytes(const JsonObject& object) {
  KVANT_ASSIGN(const auto eight, object.boolean("load_in_8bit"));
  KVANT_ASSIGN(const auto four, object.boolean("load_in_4bit"));
  KVANT_ASSIGN(const auto nested, object.boolean("bnb_4bit_use_double_quant"));
  constexpr std::string_view kName = "bitsandbytes";
  if (eight.value_or(false)) return DeclaredWeights{.method = with_bits(kName, 8), .bits = 8};
  if (!four.value_or(false)) return DeclaredWeights{.method = std::string(kName)};
  // A scale for 64 values: 32 bits, or 8 and a 32-bit one for 256 of those.
  const double scale = nested.value_or(false) ? 8 + 32.0 / 256 : 32;
  return DeclaredWeights{.method = with_bits(kName, 4), .bits = 4 + scale / 64};
}

// True if the patterns of what stays as it is name attention: then only experts are left.
Result<bool> ignores_attention(const JsonObject& object) {
  if (!object.is_list("ignore")) return false;
  KVANT_ASSIGN(const auto ignored, object.strings("ignore"));
  if (!ignored) return false;
  return std::any_of(ignored->begin(), ignored->end(), [](const std::string& name) {
    return name.starts_with("re:") && name.find("attn") != name.npos;
  });
}

Result<DeclaredWeights> read_compressed(const JsonObject& object) {
  DeclaredWeights out{.method = "compressed-tensors"};
  KVANT_ASSIGN(const auto groups, object.object("config_groups"));
  if (!groups) return out;
  int64_t bits = 0, size = 0;
  for (const std::string& name : groups->keys()) {
    KVANT_ASSIGN(const auto group, groups->object(name));
    if (!group) continue;
    KVANT_ASSIGN(const auto weights, group->object("weights"));
    if (!weights) continue;
    KVANT_ASSIGN(const int64_t width, first_integer(*weights, {"num_bits"}));
    KVANT_ASSIGN(size, first_integer(*weights, {"group_size"}));
    if (bits != 0 && width != bits) return out;  // of several widths nobody knows the shares
    bits = width;
  }
  if (!plausible(bits)) return out;
  KVANT_ASSIGN(const auto format, object.string("format"));
  const bool short_scales = format && format->find("fp4") != format->npos;
  out.method = with_bits(out.method, bits);
  out.bits = static_cast<double>(bits) +
             (size > 0 ? (short_scales ? 8.0 : 16.0) / static_cast<double>(size) : 0);
  KVANT_ASSIGN(out.experts_only, ignores_attention(object));
  return out;
}

Result<DeclaredWeights> read_method(const JsonObject& config) {
  KVANT_ASSIGN(const std::optional<JsonObject> object, config.object("quantization_config"));
  if (!object) return DeclaredWeights();
  KVANT_ASSIGN(const std::optional<std::string> method, object->string("quant_method"));
  if (!method) return DeclaredWeights{.method = "no quant_method"};
  for (const MethodRow& row : kMethods) {
    if (row.method == *method)
      return DeclaredWeights{.method = *method, .bits = row.bits, .experts_only = row.experts_only};
  }
  if (*method == "gptq" || *method == "awq") return read_grouped(*object, *method);
  if (*method == "bitsandbytes") return read_bitsandbytes(*object);
  if (*method == "compressed-tensors") return read_compressed(*object);
  return DeclaredWeights{.method = in_quotes(*method)};
}

}  // namespace

DeclaredWeights read_declared_weights(const JsonObject& config) {
  const Result<DeclaredWeights> weights = read_method(config);
  return weights.ok() ? *weights : DeclaredWeights{.method = "fields that can't be read"};
}

}  // namespace kvant
