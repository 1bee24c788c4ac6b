// estimate_weights: the bytes of a model's weights, from its files or by counting.
#include <algorithm>
#include <array>
#include <cmath>

#include "kvant/plan.h"
#include "plan/explain.h"

namespace kvant {
namespace {

struct WeightType {
  std::string_view name;
  double bits;  // of a parameter, block scales included
};
constexpr std::array<WeightType, 8> kTypes = {{{"f32", 32},
                                               {"bf16", 16},
                                               {"f16", 16},
                                               {"fp8", 8},
                                               {"int8", 8},
                                               {"q8_0", 8.5},
                                               {"int4", 4},
                                               {"q4_0", 4.5}}};
constexpr double kExact = 16;  // bits of what a method leaves as it is

Result<double> bits_of(std::string_view type) {
  std::string names;
  for (const WeightType& row : kTypes) {
    if (row.name == type) return row.bits;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid_argument("--weights-dtype " + std::string(type) + ": wanted one of " + names);
}

uint64_t bytes_at(int64_t parameters, double bits) {
  return static_cast<uint64_t>(std::llround(static_cast<double>(parameters) * bits / 8));
}

EndWeights ends_at(const ParameterParts& parts, double bits) {
  return {.embeddings = bytes_at(parts.embeddings, bits),
          .output = bytes_at(parts.output, bits),
          .tied = parts.tied};
}

WeightEstimate uniform(const ParameterParts& parts, int64_t parameters, double bits) {
  return {
      .bytes = bytes_at(parameters, bits),
      .ends = ends_at(parts, bits),
      .calculation = std::to_string(parameters) + " parameters × " + exact_number(bits) + " / 8",
      .notes = {}};
}

// What a method leaves in bf16: all but the experts, or embeddings and output.
WeightEstimate as_declared(const ModelShape& shape, const ParameterParts& parts,
                           int64_t parameters) {
  const DeclaredWeights& declared = shape.declared_weights;
  const std::string reason = " as quantization_config declares";
  const bool apart = parts.embeddings > 0 && (!declared.experts_only || parts.experts > 0);
  if (declared.bits == 0 || (declared.experts_only && !apart)) {
    WeightEstimate exact = uniform(parts, parameters, kExact);
    exact.notes.push_back("quantization_config declares weights in " + declared.method +
                          (declared.bits == 0
                               ? ", whose bits aren't known here"
                               : " for experts only, which can't be counted apart here") +
                          ": they are counted as bf16; --weights-dtype says otherwise");
    return exact;
  }
  const int64_t kept = !apart                  ? 0
                       : declared.experts_only ? parameters - parts.experts
                                               : parts.embeddings + (parts.tied ? 0 : parts.output);
  WeightEstimate out = uniform(parts, parameters - kept, declared.bits);
  out.ends = ends_at(parts, kExact);
  if (kept > 0) {
    out.bytes += bytes_at(kept, kExact);
    out.calculation = "(" + std::to_string(parameters - kept) + " parameters × " +
                      exact_number(declared.bits) + " + " + std::to_string(kept) +
                      " of the rest × 16) / 8";
  }
  const std::string rest = kept == 0               ? ""
                           : declared.experts_only ? ", the rest as bf16"
                                                   : ", embeddings and output as bf16";
  out.notes.push_back(
      (declared.experts_only ? "experts are counted as " : "weights are counted as ") +
      declared.method + "," + reason + rest + "; --weights-dtype says otherwise");
  return out;
}

// The parts that fit into another number of parameters; none where they can't be of it.
ParameterParts parts_within(const ModelShape& shape, int64_t parameters) {
  ParameterParts parts = shape.parts;
  const int64_t rest = shape.num_parameters - parts.experts;
  if (parameters < rest || shape.num_parameters == 0) return {};
  if (parts.experts > 0) parts.experts = parameters - rest;
  return parts;
}

}  // namespace

Result<WeightEstimate> estimate_weights(const ModelShape& shape, std::string_view type,
                                        int64_t parameters) {
  double bits = 0;
  if (!type.empty()) {
    KVANT_ASSIGN(bits, bits_of(type));
  }
  if (type.empty() && shape.weight_bytes > 0 && parameters == 0) {
    WeightEstimate files{.bytes = shape.weight_bytes, .ends = {}, .calculation = {}, .notes = {}};
    const uint64_t counted = bytes_at(shape.num_parameters, kExact);
    // Of quantized files nobody says in which bits the ends are; of others the count does.
    if (counted > 0 && shape.weight_bytes <= counted + counted / 50 &&
        shape.weight_bytes >= counted - counted / 50)
      files.ends = ends_at(shape.parts, kExact);
    return files;
  }
  const int64_t count = parameters > 0 ? parameters : shape.num_parameters;
  if (count == 0) return WeightEstimate();
  const ParameterParts parts = parts_within(shape, count);
  if (bits > 0) return uniform(parts, count, bits);
  if (!shape.declared_weights.method.empty()) return as_declared(shape, parts, count);
  return uniform(parts, count, kExact);
}

}  // namespace kvant
