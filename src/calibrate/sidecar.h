// Sidecar: what calibration found about a model, in one safetensors file beside it.
//
// Per layer that owns keys, `layers.<l>.k.transform` F32 [heads][2][D][D] (A and A^-T of
// formats/transform.cc) for tc<B>, `layers.<l>.k.balanced` alike for bal<B>, and
// `layers.<l>.k.<format>.bits` U8 [heads][D] for every format of that family; scales as
// cache_scales.h says, sensitivities as sensitivities.h; `data.lines` I64, hashes of the text's
// lines (overlap.h). The header's metadata says which model it belongs to and how it was made, and
// has a checksum over all of it (files/checksum.h). docs/format-spec.md has the whole table.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/cache_scales.h"
#include "calibrate/sensitivities.h"
#include "calibrate/transform_fit.h"
#include "kvant/cache.h"

namespace kvant {

inline constexpr std::string_view kSidecarName = "kvant-cache.safetensors";

struct SidecarFacts {
  std::string model = {};    // model_fingerprint()
  std::string data = {};     // digest of the documents
  std::string command = {};  // that calibrated; empty: nothing is calibrated
  int64_t tokens = 0;
  uint64_t seed = 0;
  std::vector<int64_t> lines = {};  // line_hashes() of the documents
};

// Transforms of one layer's heads: the same matrices in every format of a basis, other bits.
struct LayerTransforms {
  int dim = 0;                                                // 0: the layer has none
  std::vector<std::vector<float>> matrices;                   // [head][2·D²], of tc<B>
  std::vector<std::vector<float>> balanced;                   // [head][2·D²], of bal<B>
  std::map<std::string, std::vector<std::vector<int>>> bits;  // format → [head][D]

  const std::vector<std::vector<float>>& matrices_of(std::string_view format) const {
    return format.starts_with("bal") ? balanced : matrices;
  }
};

struct SidecarContents {
  SidecarFacts facts;
  std::vector<LayerTransforms> transforms = {};  // per layer
  CacheScales scales = {};
  Sensitivities sensitivities = {};
};

// The file's bytes.
std::string make_sidecar(const SidecarContents& contents);

class Sidecar {
 public:
  // `path`: the file, or a directory that holds it. corrupt with file and tensor for what isn't
  // one.
  static Result<Sidecar> open(const std::filesystem::path& path);

  const SidecarContents& contents() const { return contents_; }
  const SidecarFacts& facts() const { return contents_.facts; }
  const CacheScales& scales() const { return contents_.scales; }
  const std::filesystem::path& path() const { return path_; }
  // False of one that kvant sensitivity made alone.
  bool is_calibration() const { return !contents_.facts.command.empty(); }
  // invalid_argument unless it was made for the model at this path.
  Status check_model(const std::filesystem::path& model) const;
  // Formats that a layer with so many heads of `dim` channels has artifacts for.
  std::vector<std::string> formats(int layer, int num_heads, int dim) const;
  // Those of any layer.
  std::vector<std::string> all_formats() const;
  // What a layer's heads of `dim` channels take in a format; null where the file has nothing for
  // them.
  std::shared_ptr<const HeadArtifacts> artifacts(int layer, std::string_view format, int num_heads,
                                                 int dim) const;

 private:
  // The layer's transforms, if they have such heads for the format; else null.
  const LayerTransforms* transforms(int layer, std::string_view format, int num_heads,
                                    int dim) const;

  std::filesystem::path path_;
  SidecarContents contents_;
};

}  // namespace kvant
