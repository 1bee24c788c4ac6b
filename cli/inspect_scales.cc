#include "cli/inspect_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "calibrate/sidecar.h"
#include "cli/scale_report.h"
#include "cli/terminal.h"
#include "files/json.h"
#include "files/safetensors.h"
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

// Scales of a checkpoint, and where K or V of a layer has none though others have.
std::vector<ScaleEntry> checkpoint_entries(std::span<const CheckpointScale> found, int num_layers) {
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

// The sidecar that a path means: itself, in the directory, or beside a GGUF file.
fs::path sidecar_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return path / kSidecarName;
  if (path.extension() == ".safetensors") return path;
  return path.parent_path() / kSidecarName;
}

std::string facts_text(const Sidecar& sidecar) {
  const SidecarFacts& facts = sidecar.facts();
  return fmt::format("{}: of model {}, text {}, {}, seed {}\n  made by {}\n",
                     sidecar.path().string(), facts.model.substr(0, 8),
                     facts.data.empty() ? "none" : facts.data.substr(0, 8),
                     counted(facts.tokens, "token"), facts.seed, facts.command);
}

}  // namespace

Status inspect_scales(const Invocation& in) {
  const fs::path path = in.model;
  std::error_code error;
  if (!fs::exists(path, error)) return not_found(in.model + " doesn't exist");
  std::vector<ScaleEntry> entries;
  std::string heading;
  const bool is_checkpoint = fs::exists(path / "config.json", error);
  if (is_checkpoint) {
    KVANT_ASSIGN(const std::unique_ptr<Safetensors> files, Safetensors::open_directory(path));
    KVANT_ASSIGN(const std::vector<CheckpointScale> found, read_checkpoint_scales(*files));
    entries = checkpoint_entries(found, num_attention_layers(*files));
    const int layers = found.empty() ? 0 : found.back().layer + 1;
    heading += found.empty() ? fmt::format("{}: no scales among its weights\n", in.model)
                             : fmt::format("{}: {} for {}\n", in.model,
                                           counted(static_cast<int64_t>(found.size()), "tensor"),
                                           counted(layers, "layer"));
  }
  const fs::path beside = sidecar_of(path);
  if (fs::exists(beside, error)) {
    KVANT_ASSIGN(const Sidecar sidecar, Sidecar::open(beside));
    if (is_checkpoint || path.extension() == ".gguf") KVANT_TRY(sidecar.check_model(path));
    heading += facts_text(sidecar);
    for (ScaleEntry& entry : scale_entries(sidecar.scales(), beside.filename().string()))
      entries.push_back(std::move(entry));
  } else if (!is_checkpoint) {
    return not_found(fmt::format("{} carries no scales: there is no {}; kvant calibrate makes one",
                                 in.model, beside.string()));
  }
  if (!in.settings.json.empty())
    KVANT_TRY(
        write_json(in.settings.json, {{"path", in.model}, {"scales", entries_json(entries)}}));
  if (takes_output(in.settings.json)) return {};
  const std::string table =
      entries.empty() ? "no scales\n" : entries_table(entries, has_colors(stdout));
  return write_text("-", heading + table);
}

}  // namespace kvant::cli
