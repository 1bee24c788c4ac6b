#include "plan/architectures.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "plan/readers.h"

namespace kvant {
namespace {

constexpr Architecture kArchitectures[] = {
#define KVANT_ARCHITECTURE(model_type, reader, ...) {model_type, reader, {__VA_ARGS__}},
#include "plan/architectures.def"
#undef KVANT_ARCHITECTURE
};

// "qwen2moe" of "qwen2_moe" and of "Qwen2Moe".
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != '_' && c != '-') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

}  // namespace

std::span<const Architecture> all_architectures() { return kArchitectures; }

const Architecture* find_architecture(std::string_view model_type) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.model_type == model_type) return &architecture;
  }
  return nullptr;
}

const Architecture* find_architecture_of_class(std::string_view class_name) {
  constexpr std::array<std::string_view, 4> kEndings = {"ForCausalLM", "LMHeadModel",
                                                        "ForConditionalGeneration", "Model"};
  for (const std::string_view ending : kEndings) {
    if (!class_name.ends_with(ending)) continue;
    class_name.remove_suffix(ending.size());
    break;
  }
  const std::string wanted = plain(class_name);
  for (const Architecture& architecture : kArchitectures) {
    if (plain(architecture.model_type) == wanted) return &architecture;
  }
  return nullptr;
}

const Architecture& unknown_architecture() {
  // Only what layer_types or a pattern calls sliding is.
  static constexpr Architecture kUnknown = {
      "unknown", read_unknown, {.windows = Windows::kPeriod, .period = 1}};
  return kUnknown;
}

}  // namespace kvant
