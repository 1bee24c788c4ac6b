#include "plan/positions.h"

#include <algorithm>
#include <array>

#include "files/mapped_file.h"

namespace kvant {
namespace {

// The first that is there: files carry several, and not all mean the same.
constexpr std::array<const char*, 9> kNames = {"max_position_embeddings",
                                               "n_positions",
                                               "n_ctx",
                                               "max_seq_len",
                                               "seq_length",
                                               "max_sequence_length",
                                               "model_max_length",
                                               "context_length",
                                               "max_target_positions"};

// Scalings that reach further than the original length by their factor.
constexpr std::array<std::string_view, 3> kStretching = {"linear", "yarn", "llama3"};
// Those that say nothing about the length.
constexpr std::array<std::string_view, 8> kOthers = {"default", "dynamic",      "longrope", "su",
                                                     "mrope",   "proportional", "gptj",     "ntk"};

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Result<int64_t> declared(const ConfigReader& config) {
  for (const char* name : kNames) {
    KVANT_ASSIGN(const std::optional<int64_t> value,
                 find_integer(config.json(), name, kPositionRange));
    if (value) return *value;
  }
  return config.wrapped_default("max_position_embeddings", config.defaults().positions).value_or(0);
}

// rope_parameters or rope_scaling; the full layers' where they are by kind of layer.
Result<std::optional<JsonObject>> scaling_object(const ConfigReader& config) {
  const bool newer = config.json().has("rope_parameters");
  KVANT_ASSIGN(std::optional<JsonObject> object,
               config.json().object(newer ? "rope_parameters" : "rope_scaling"));
  if (object && object->has("full_attention")) return object->object("full_attention");
  return object;
}

Result<std::string> scaling_kind(const JsonObject& scaling) {
  KVANT_ASSIGN(const std::optional<std::string> kind,
               scaling.string(scaling.has("rope_type") ? "rope_type" : "type"));
  return kind.value_or("default");
}

}  // namespace

Result<int64_t> read_max_positions(const ConfigReader& config) {
  KVANT_ASSIGN(const int64_t positions, declared(config));
  KVANT_ASSIGN(const std::optional<JsonObject> scaling, scaling_object(config));
  if (!scaling) return positions;
  KVANT_ASSIGN(const std::string kind, scaling_kind(*scaling));
  KVANT_ASSIGN(const std::optional<double> factor, scaling->number("factor"));
  if (factor && !(*factor > 0)) {
    return corrupt(scaling->where("factor") + ": " + std::to_string(*factor) +
                   ", wanted a positive number");
  }
  if (!contains(kStretching, kind)) {
    if (factor && !contains(kOthers, kind)) {
      config.note("the RoPE scaling " + in_quotes(kind) +
                  " isn't known: the context's length is taken as declared");
    }
    return positions;
  }
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  KVANT_ASSIGN(std::optional<int64_t> original, find_integer(*scaling, kOriginal, kPositionRange));
  if (!original) {
    KVANT_ASSIGN(original, find_integer(config.json(), kOriginal, kPositionRange));
  }
  if (!original || !factor) return positions;
  // Llama 3's factor says how the frequencies are bent, not how far: what is declared is final.
  if (kind == "llama3" && positions > *original) return positions;
  const double reach = static_cast<double>(*original) * *factor;
  if (reach > static_cast<double>(kPositionRange.high)) {
    return corrupt(scaling->where("factor") + ": " + std::to_string(*factor) + " times " +
                   std::to_string(*original) + " positions, wanted at most " +
                   std::to_string(kPositionRange.high));
  }
  return std::max(positions, static_cast<int64_t>(reach));
}

}  // namespace kvant
