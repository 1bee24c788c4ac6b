#include "calibrate/sidecar.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>

#include "calibrate/layer_tensor.h"
#include "files/checksum.h"
#include "files/fingerprint.h"
#include "files/mapped_file.h"
#include "files/safetensors.h"
#include "files/safetensors_writer.h"

namespace kvant {
namespace {

// Version 1 had no checksum; it is read without.
constexpr std::string_view kVersion = "2", kVersionWithoutChecksum = "1";
constexpr std::string_view kLines = "data.lines";
constexpr std::string_view kTransform = "transform", kBalanced = "balanced";

std::string tensor_name(size_t layer, std::string_view what) {
  return "layers." + std::to_string(layer) + ".k." + std::string(what);
}

template <typename T>
T number_or(const std::string* text, T fallback) {
  T value = fallback;
  if (text != nullptr) std::from_chars(text->data(), text->data() + text->size(), value);
  return value;
}

Status bad_tensor(const std::filesystem::path& path, const SafetensorsTensor& tensor) {
  return corrupt(path.string() + ": tensor " + in_quotes(tensor.name) + " is a " + tensor.dtype +
                 " of " + std::to_string(tensor.shape.size()) +
                 " dimensions, which no calibration writes there");
}

Status read_matrices(const std::filesystem::path& path, const SafetensorsTensor& tensor,
                     LayerTransforms& layer, std::vector<std::vector<float>>& to) {
  if (tensor.dtype != "F32" || tensor.shape.size() != 4 || tensor.shape[1] != 2 ||
      tensor.shape[2] != tensor.shape[3] || tensor.shape[2] == 0 || tensor.shape[2] > 1024 ||
      (layer.dim != 0 && tensor.shape[2] != static_cast<size_t>(layer.dim))) {
    return bad_tensor(path, tensor);
  }
  layer.dim = static_cast<int>(tensor.shape[2]);
  const size_t floats = 2 * tensor.shape[2] * tensor.shape[2];
  for (size_t h = 0; h < tensor.shape[0]; ++h) {
    std::vector<float>& head = to.emplace_back(floats);
    std::memcpy(head.data(), tensor.data.data() + h * floats * sizeof(float),
                floats * sizeof(float));
  }
  return {};
}

Status read_bits(const std::filesystem::path& path, const SafetensorsTensor& tensor,
                 std::string_view format, LayerTransforms& to) {
  if (tensor.dtype != "U8" || tensor.shape.size() != 2) return bad_tensor(path, tensor);
  const size_t dim = tensor.shape[1];
  std::vector<std::vector<int>>& heads = to.bits[std::string(format)];
  for (size_t h = 0; h < tensor.shape[0]; ++h) {
    std::vector<int>& head = heads.emplace_back();
    for (size_t i = 0; i < dim; ++i) head.push_back(std::to_integer<int>(tensor.data[h * dim + i]));
  }
  return {};
}

void write_transforms(const LayerTransforms& layer, size_t l, SafetensorsWriter& writer) {
  const auto dim = static_cast<size_t>(layer.dim);
  for (const auto& [name, heads] :
       {std::pair(kTransform, &layer.matrices), {kBalanced, &layer.balanced}}) {
    if (heads->empty()) continue;
    std::vector<float> matrices;
    for (const auto& head : *heads) matrices.insert(matrices.end(), head.begin(), head.end());
    writer.add(tensor_name(l, name), "F32", {heads->size(), 2, dim, dim}, matrices);
  }
  for (const auto& [format, heads] : layer.bits) {
    std::vector<uint8_t> bits;
    for (const auto& head : heads) {
      for (const int b : head) bits.push_back(static_cast<uint8_t>(b));
    }
    writer.add(tensor_name(l, format + ".bits"), "U8", {heads.size(), dim}, bits);
  }
}

// Takes a tensor of a transform; passes over any other.
Status read_transform(const std::filesystem::path& path, const SafetensorsTensor& tensor,
                      std::vector<LayerTransforms>& layers) {
  constexpr std::string_view kBits = ".bits";
  const std::optional<LayerTensorName> name = split_layer_tensor(tensor.name);
  if (!name || name->side != "k") return {};
  if (layers.size() <= name->layer) layers.resize(name->layer + 1);
  const std::string_view what = name->what;
  LayerTransforms& of = layers[name->layer];
  if (what == kTransform || what == kBalanced)
    return read_matrices(path, tensor, of, what == kTransform ? of.matrices : of.balanced);
  if (what.ends_with(kBits))
    return read_bits(path, tensor, what.substr(0, what.size() - kBits.size()), of);
  return {};
}

Status check_version(const Safetensors& file, const std::filesystem::path& path) {
  const std::string* version = file.metadata("kvant.version");
  if (version != nullptr && *version == kVersionWithoutChecksum) return {};
  if (version == nullptr || *version != kVersion) {
    return corrupt(path.string() + " is no calibration of kvant: kvant.version is " +
                   (version == nullptr ? "missing" : in_quotes(*version)) + ", wanted " +
                   std::string(kVersion) + " or " + std::string(kVersionWithoutChecksum));
  }
  KVANT_ASSIGN(const MappedFile bytes, MappedFile::open(path));
  return check_checksum(bytes.bytes(), path.string());
}

}  // namespace

std::string make_sidecar(const SidecarContents& contents) {
  const SidecarFacts& facts = contents.facts;
  SafetensorsWriter writer;
  for (size_t l = 0; l < contents.transforms.size(); ++l)
    write_transforms(contents.transforms[l], l, writer);
  std::vector<std::pair<std::string, std::string>> metadata = {
      checksum_placeholder(),
      {"kvant.version", std::string(kVersion)},
      {"kvant.model", facts.model},
      {"kvant.data", facts.data},
      {"kvant.tokens", std::to_string(facts.tokens)},
      {"kvant.seed", std::to_string(facts.seed)},
      {"kvant.command", facts.command}};
  write_scales(contents.scales, writer, metadata);
  write_sensitivities(contents.sensitivities, writer, metadata);
  if (!facts.lines.empty())
    writer.add(std::string(kLines), "I64", {facts.lines.size()}, facts.lines);
  return with_checksum(writer.finish(metadata));
}

Result<Sidecar> Sidecar::open(const std::filesystem::path& path) {
  Sidecar out;
  std::error_code error;
  out.path_ = std::filesystem::is_directory(path, error) ? path / kSidecarName : path;
  KVANT_ASSIGN(const std::unique_ptr<Safetensors> file, Safetensors::open_file(out.path_));
  KVANT_TRY(check_version(*file, out.path_));
  const auto text = [&](const char* key) {
    const std::string* found = file->metadata(key);
    return found == nullptr ? std::string() : *found;
  };
  SidecarFacts& facts = out.contents_.facts;
  facts = {.model = text("kvant.model"),
           .data = text("kvant.data"),
           .command = text("kvant.command"),
           .tokens = number_or<int64_t>(file->metadata("kvant.tokens"), 0),
           .seed = number_or<uint64_t>(file->metadata("kvant.seed"), 0)};
  for (const SafetensorsTensor& tensor : file->tensors()) {
    if (tensor.name == kLines && tensor.dtype == "I64") {
      facts.lines.resize(tensor.data.size() / sizeof(int64_t));
      std::memcpy(facts.lines.data(), tensor.data.data(), tensor.data.size());
    }
    KVANT_TRY(read_transform(out.path_, tensor, out.contents_.transforms));
  }
  KVANT_ASSIGN(out.contents_.scales, read_scales(*file));
  KVANT_ASSIGN(out.contents_.sensitivities, read_sensitivities(*file));
  return out;
}

Status Sidecar::check_model(const std::filesystem::path& model) const {
  KVANT_ASSIGN(const std::string fingerprint, model_fingerprint(model));
  if (fingerprint == facts().model) return {};
  return invalid_argument(path_.string() +
                          " was made for another model: " + in_quotes(facts().model) + ", and " +
                          model.string() + " is " + in_quotes(fingerprint));
}

const LayerTransforms* Sidecar::transforms(int layer, std::string_view format, int num_heads,
                                           int dim) const {
  const std::vector<LayerTransforms>& layers = contents_.transforms;
  if (layer < 0 || static_cast<size_t>(layer) >= layers.size()) return nullptr;
  const LayerTransforms& of = layers[static_cast<size_t>(layer)];
  const auto bits = of.bits.find(std::string(format));
  const auto heads = static_cast<size_t>(num_heads);
  const bool fits = of.dim == dim && bits != of.bits.end() && bits->second.size() == heads &&
                    of.matrices_of(format).size() == heads;
  return fits ? &of : nullptr;
}

std::vector<std::string> Sidecar::formats(int layer, int num_heads, int dim) const {
  std::vector<std::string> out;
  for (const std::string& format : all_formats()) {
    if (transforms(layer, format, num_heads, dim) != nullptr) out.push_back(format);
  }
  return out;
}

std::vector<std::string> Sidecar::all_formats() const {
  std::set<std::string> names;
  for (const LayerTransforms& layer : contents_.transforms) {
    for (const auto& [format, bits] : layer.bits) names.insert(format);
  }
  return {names.begin(), names.end()};
}

std::shared_ptr<const HeadArtifacts> Sidecar::artifacts(int layer, std::string_view format,
                                                        int num_heads, int dim) const {
  const LayerTransforms* of = transforms(layer, format, num_heads, dim);
  if (of == nullptr) return nullptr;
  const std::vector<std::vector<int>>& bits = of->bits.at(std::string(format));
  auto out = std::make_shared<HeadArtifacts>(of->matrices_of(format));
  for (size_t h = 0; h < out->size(); ++h) {
    for (const int b : bits[h]) (*out)[h].push_back(static_cast<float>(b));
  }
  return out;
}

}  // namespace kvant
