#include "cli/inspect_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>

#include "calibrate/sidecar.h"
#include "cli/scale_report.h"
#include "cli/terminal.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "kvant/plan.h"
#include "model/checkpoint_scales.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;
using Of = CheckpointScale::Of;

// Layers with attention, by the names of their weights.
int num_attention_layers(const Safetensors& files) {
  int count = 0;
  for (const SafetensorsTensor& tensor : files.tensors()) {
    const size_t at = tensor.name.find("layers.");
    if (at == tensor.name.npos || tensor.name.find("attn", at) == tensor.name.npos) continue;
    count = std::max(count, std::atoi(tensor.name.c_str() + at + 7) + 1);
  }
  return count;
}

// Scales of a checkpoint, and where K or V of a layer has none though others have. `kept`: of the
// sidecar beside it.
std::vector<ScaleEntry> checkpoint_entries(std::span<const CheckpointScale> found, int num_layers,
                                           const CacheScales& kept) {
  std::vector<ScaleEntry> out;
  std::map<std::pair<int, char>, bool> seen;
  for (const CheckpointScale& scale : found) {
    for (const char side : {'q', 'k', 'v'}) {
      const bool is_both = scale.of == Of::kKeyAndValue && side != 'q';
      const Of own = side == 'q' ? Of::kQuery : side == 'k' ? Of::kKey : Of::kValue;
      if (scale.of != own && !is_both) continue;
      seen[{scale.layer, side}] = true;
      for (size_t h = 0; h < scale.values.size(); ++h) {
        ScaleEntry entry;
        entry.layer = scale.layer;
        entry.side = side;
        entry.head = scale.values.size() > 1 ? static_cast<int>(h) : -1;
        entry.format = entry.head < 0 ? "fp8_e4m3_tensor" : "fp8_e4m3_head";
        entry.scale = double{scale.values[h]};
        entry.largest = largest_seen(kept, scale.layer, side, entry.head);
        entry.origin = fs::path(scale.file).filename().string();
        judge(entry);
        out.push_back(std::move(entry));
      }
    }
  }
  for (int l = 0; !out.empty() && l < num_layers; ++l) {
    for (const char side : {'k', 'v'}) {
      if (seen[{l, side}]) continue;
      ScaleEntry entry;
      entry.layer = l;
      entry.side = side;
      entry.format = out.front().format;
      entry.origin = "the checkpoint";
      entry.complaint = "missing";
      out.push_back(std::move(entry));
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.layer < b.layer; });
  return out;
}

int num_heads(const ModelShape& shape, const ScaleEntry& entry) {
  if (entry.side == 'q') return shape.num_query_heads;
  const std::vector<CacheStream>& streams = shape.layers[static_cast<size_t>(entry.layer)].streams;
  return streams.empty() ? 0 : streams.front().heads;
}

// Complains of layers that the model doesn't have, and of scales that are neither one nor one for
// each head.
void check_counts(const ModelShape& shape, std::vector<ScaleEntry>& entries) {
  using Group = std::tuple<std::string, int, char, std::string>;
  const auto group_of = [](const ScaleEntry& e) {
    return Group(e.origin, e.layer, e.side, e.format);
  };
  std::map<Group, int> counts;
  for (const ScaleEntry& e : entries) ++counts[group_of(e)];
  for (ScaleEntry& e : entries) {
    if (!e.complaint.empty()) continue;
    if (static_cast<size_t>(e.layer) >= shape.layers.size()) {
      e.complaint = fmt::format("the model has {} layers", shape.layers.size());
      continue;
    }
    const ScaledFormat* format = find_scaled_format(e.format);
    const int count = counts[group_of(e)], heads = num_heads(shape, e);
    if (format == nullptr || count == (format->per_head ? heads : 1)) continue;
    e.complaint = fmt::format("one of {} scales for {}", count,
                              counted(heads, e.side == 'q' ? "query head" : "KV head"));
  }
}

// The sidecar that a path means: itself, in the directory, or beside a GGUF file.
fs::path sidecar_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return path / kSidecarName;
  if (path.extension() == ".safetensors") return path;
  return path.parent_path() / kSidecarName;
}

std::string checkpoint_text(const std::string& model, std::span<const CheckpointScale> found) {
  if (found.empty()) return fmt::format("{}: no scales among its weights\n", model);
  return fmt::format("{}: {} for {}\n", model,
                     counted(static_cast<int64_t>(found.size()), "tensor"),
                     counted(found.back().layer + 1, "layer"));
}

}  // namespace

Status inspect_scales(const Invocation& in) {
  const fs::path path = in.model;
  std::error_code error;
  if (!fs::exists(path, error)) return not_found(in.model + " doesn't exist");
  const bool is_checkpoint = fs::exists(path / "config.json", error);
  const bool is_model = is_checkpoint || path.extension() == ".gguf";
  const fs::path beside = sidecar_of(path);
  std::optional<Sidecar> sidecar;
  if (fs::exists(beside, error)) {
    KVANT_ASSIGN(sidecar, Sidecar::open(beside));
    if (is_model) KVANT_TRY(sidecar->check_model(path));
  } else if (!is_checkpoint) {
    return not_found(fmt::format("{} carries no scales: there is no {}; kvant calibrate makes one",
                                 in.model, beside.string()));
  }
  std::vector<ScaleEntry> entries;
  std::string heading;
  if (is_checkpoint) {
    KVANT_ASSIGN(const std::unique_ptr<Safetensors> files, Safetensors::open_directory(path));
    KVANT_ASSIGN(const std::vector<CheckpointScale> found, read_checkpoint_scales(*files));
    entries = checkpoint_entries(found, num_attention_layers(*files),
                                 sidecar ? sidecar->scales() : CacheScales());
    heading += checkpoint_text(in.model, found);
  }
  if (sidecar) {
    heading += sidecar_heading(*sidecar);
    for (ScaleEntry& entry : scale_entries(sidecar->scales(), beside.filename().string()))
      entries.push_back(std::move(entry));
  }
  if (is_model) {
    const Result<ModelShape> shape = read_model_shape(path);
    if (shape.ok()) check_counts(*shape, entries);
    if (!shape.ok())
      heading += fmt::format("note: heads aren't known: {}\n", shape.status().message());
  }
  if (!in.settings.json.empty())
    KVANT_TRY(
        write_json(in.settings.json, {{"path", in.model}, {"scales", entries_json(entries)}}));
  if (!takes_output(in.settings.json)) {
    const std::string table =
        entries.empty() ? "no scales\n" : entries_table(entries, has_colors(stdout));
    KVANT_TRY(write_text("-", heading + table));
  }
  const int64_t wrong = count_wrong(entries);
  if (!in.settings.strict || wrong == 0) return {};
  return corrupt(fmt::format("--strict: {} of {} of {} wrong", wrong,
                             counted(static_cast<int64_t>(entries.size()), "scale"), in.model));
}

}  // namespace kvant::cli
