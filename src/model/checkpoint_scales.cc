#include "model/checkpoint_scales.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/float_types.h"
#include "formats/given_scale.h"
#include "formats/names.h"

namespace kvant {
namespace {

using Of = CheckpointScale::Of;

struct SuffixRow {
  std::string_view suffix;
  std::optional<Of> of;  // nothing: known, and not used
};
constexpr std::array<SuffixRow, 12> kSuffixes = {{{".k_scale", Of::kKey},
                                                  {".v_scale", Of::kValue},
                                                  {".q_scale", Of::kQuery},
                                                  {".kv_scale", Of::kKeyAndValue},
                                                  {".k_cache.scale", Of::kKey},
                                                  {".v_cache.scale", Of::kValue},
                                                  {".k_proj.output_scale", Of::kKey},
                                                  {".v_proj.output_scale", Of::kValue},
                                                  {".k_zero_point", std::nullopt},
                                                  {".v_zero_point", std::nullopt},
                                                  {".q_zero_point", std::nullopt},
                                                  {".prob_scale", std::nullopt}}};
constexpr std::array<std::string_view, 4> kParents = {"self_attn", "attn", "attention", "mixer"};
constexpr int kMaxLayers = 65536;
constexpr std::string_view kFixed = "fp8_e4m3";  // what FP8 is declared as (plan/declared_kv.cc)

struct ParsedName {
  int layer = 0;
  std::optional<Of> of;
};

std::optional<ParsedName> parse_name(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t begin = name.find(kLayers);
  if (begin == name.npos || (begin > 0 && name[begin - 1] != '.')) return std::nullopt;
  ParsedName out;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + begin + kLayers.size(), end, out.layer);
  if (error != std::errc() || out.layer < 0 || out.layer >= kMaxLayers || at == end || *at != '.')
    return std::nullopt;
  const std::string_view rest(at + 1, static_cast<size_t>(end - at - 1));
  const std::string_view parent = rest.substr(0, rest.find('.'));
  if (std::find(kParents.begin(), kParents.end(), parent) == kParents.end()) return std::nullopt;
  for (const SuffixRow& row : kSuffixes) {
    if (!rest.ends_with(row.suffix)) continue;
    out.of = row.of;
    return out;
  }
  return std::nullopt;
}

std::optional<std::vector<float>> numbers_of(const SafetensorsTensor& tensor) {
  std::vector<float> out;
  const auto take = [&](auto stored, auto to_float) {
    for (size_t at = 0; at + sizeof stored <= tensor.data.size(); at += sizeof stored) {
      std::memcpy(&stored, tensor.data.data() + at, sizeof stored);
      out.push_back(to_float(stored));
    }
  };
  if (tensor.dtype == "F32") {
    take(float{}, [](float x) { return x; });
  } else if (tensor.dtype == "F64") {
    take(double{}, [](double x) { return static_cast<float>(x); });
  } else if (tensor.dtype == "F16") {
    take(uint16_t{}, f16_to_f32);
  } else if (tensor.dtype == "BF16") {
    take(uint16_t{}, bf16_to_f32);
  } else {
    return std::nullopt;
  }
  return out;
}

// A side of a layer takes these; its own come before those of both.
std::vector<float>* target_of(const CheckpointScale& scale, Side side,
                              LayerCheckpointScales& layer) {
  const Of own = side == Side::kKey ? Of::kKey : Of::kValue;
  if (scale.of != own && scale.of != Of::kKeyAndValue) return nullptr;
  return side == Side::kKey ? &layer.key : &layer.value;
}

Result<std::vector<LayerCheckpointScales>> scales_by_layer(std::span<const CheckpointScale> found,
                                                           std::span<const int> num_kv_heads) {
  std::vector<LayerCheckpointScales> out(num_kv_heads.size());
  for (const CheckpointScale& scale : found) {
    const std::string where = scale.file + ": tensor " + in_quotes(scale.tensor);
    if (static_cast<size_t>(scale.layer) >= out.size()) {
      return corrupt(where + ": the model has " + std::to_string(out.size()) + " layers");
    }
    if (scale.of == Of::kQuery) continue;  // queries aren't quantized here
    const int heads = num_kv_heads[static_cast<size_t>(scale.layer)];
    if (scale.values.size() != 1 && scale.values.size() != static_cast<size_t>(heads)) {
      return unsupported(where + ": " + std::to_string(scale.values.size()) +
                         " scales, wanted 1 or one for each of " + std::to_string(heads) +
                         " KV heads");
    }
    for (const float x : scale.values) KVANT_TRY(check_stored_scale(x, where));
    for (const Side side : {Side::kKey, Side::kValue}) {
      std::vector<float>* to = target_of(scale, side, out[static_cast<size_t>(scale.layer)]);
      if (to != nullptr && to->empty()) *to = scale.values;  // kv_scale comes last
    }
  }
  return out;
}

void note_missing(std::span<const LayerCheckpointScales> layers, std::span<const int> num_kv_heads,
                  std::vector<float> LayerCheckpointScales::*side, const char* name,
                  std::vector<std::string>& notes) {
  std::vector<int> without;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (num_kv_heads[l] > 0 && (layers[l].*side).empty()) without.push_back(static_cast<int>(l));
  }
  if (without.empty()) return;
  notes.push_back("the checkpoint has no scale for " + std::string(name) + " of layers " +
                  index_ranges(without) + ": 1 is taken");
}

}  // namespace

bool belongs_to_cache(std::string_view tensor) { return parse_name(tensor).has_value(); }

Result<std::vector<CheckpointScale>> read_checkpoint_scales(const Safetensors& files) {
  std::vector<CheckpointScale> out;
  for (const SafetensorsTensor& tensor : files.tensors()) {
    const std::optional<ParsedName> name = parse_name(tensor.name);
    if (!name || !name->of) continue;
    const std::string file = files.path_of(tensor).string();
    std::optional<std::vector<float>> values = numbers_of(tensor);
    if (!values || values->empty()) {
      return corrupt(file + ": tensor " + in_quotes(tensor.name) + ": dtype " + tensor.dtype +
                     " of " + std::to_string(tensor.data.size()) +
                     " bytes, wanted F32, F16 or BF16 numbers");
    }
    out.push_back({tensor.name, file, name->layer, *name->of, *std::move(values)});
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.layer < b.layer || (a.layer == b.layer && a.of < b.of);
  });
  for (size_t i = 1; i < out.size(); ++i) {
    if (out[i].layer != out[i - 1].layer || out[i].of != out[i - 1].of) continue;
    return corrupt(out[i].file + ": tensors " + in_quotes(out[i - 1].tensor) + " and " +
                   in_quotes(out[i].tensor) + " are scales of the same; wanted one");
  }
  return out;
}

Result<UsableScales> usable_scales(std::span<const CheckpointScale> found,
                                   std::span<const int> num_kv_heads, const FormatInfo* declared) {
  UsableScales out;
  const bool is_fp8 = declared != nullptr && declared->name == kFixed;
  if (is_fp8 && found.empty()) {
    out.notes.push_back(
        "the checkpoint declares an FP8 cache and carries no scales: 1 is taken for all layers");
  }
  if (found.empty()) return out;
  KVANT_ASSIGN(out.layers, scales_by_layer(found, num_kv_heads));
  const bool per_head = std::any_of(found.begin(), found.end(), [](const CheckpointScale& scale) {
    return scale.of != Of::kQuery && scale.values.size() > 1;
  });
  if (is_fp8) {
    note_missing(out.layers, num_kv_heads, &LayerCheckpointScales::key, "K", out.notes);
    note_missing(out.layers, num_kv_heads, &LayerCheckpointScales::value, "V", out.notes);
  }
  for (size_t l = 0; l < out.layers.size(); ++l) {
    LayerCheckpointScales& layer = out.layers[l];
    layer.key_is_assumed = is_fp8 && layer.key.empty();
    layer.value_is_assumed = is_fp8 && layer.value.empty();
    for (std::vector<float>* side : {&layer.key, &layer.value}) {
      if (side->empty() && is_fp8) side->push_back(1);
      if (per_head && side->size() == 1)
        side->assign(static_cast<size_t>(std::max(num_kv_heads[l], 1)), side->front());
    }
  }
  KVANT_ASSIGN(out.format, find_format(per_head ? "fp8_e4m3_head" : "fp8_e4m3_tensor"));
  return out;
}

}  // namespace kvant
