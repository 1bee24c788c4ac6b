// The registry: every family's formats in one list, their lookup by name, and the checks that stand
// before any codec.
#include <algorithm>
#include <array>
#include <cstdio>
#include <unordered_map>

#include "formats/family.h"
#include "formats/given_scale.h"
#include "formats/names.h"
#include "formats/rotated.h"

namespace kvant {
namespace {

constexpr int kMaxDim = 1024;

struct Registry {
  std::vector<FormatDefinition> definitions;
  std::vector<FormatInfo> infos;  // of definitions, in the same order
  std::unordered_map<std::string_view, size_t> by_name;
};

void add_family(Registry& registry, std::string_view family,
                std::vector<FormatDefinition> definitions) {
  for (FormatDefinition& definition : definitions) {
    definition.info.family = family;
    if (definition.info.layout.empty()) definition.info.layout = definition.info.name;
    const bool rotatable = can_rotate(definition.info);
    registry.definitions.push_back(std::move(definition));
    if (rotatable) registry.definitions.push_back(rotated_definition(registry.definitions.back()));
  }
}

const Registry& registry() {
  static const Registry instance = [] {
    Registry r;
#define KVANT_FORMAT_FAMILY(family) add_family(r, #family, family##_family());
#include "formats/formats.def"
#undef KVANT_FORMAT_FAMILY
    for (const FormatDefinition& d : r.definitions) r.infos.push_back(d.info);
    for (size_t i = 0; i < r.infos.size(); ++i) r.by_name.emplace(r.infos[i].name, i);
    return r;
  }();
  return instance;
}

// The group sizes that formats otherwise equal to `format` offer, ascending.
std::vector<int> sibling_groups(const FormatInfo& format) {
  std::vector<int> groups;
  for (const FormatInfo& other : all_formats()) {
    if (other.granularity == Granularity::kGroup && other.family == format.family &&
        other.nominal_bits == format.nominal_bits) {
      groups.push_back(other.group);
    }
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

Status check_group(const FormatInfo& format, int dim) {
  if (format.granularity != Granularity::kGroup || dim % format.group == 0) return {};
  std::string dividing;
  std::string offered;
  for (const int group : sibling_groups(format)) {
    offered += (offered.empty() ? "" : ", ") + std::to_string(group);
    if (dim % group == 0) dividing += (dividing.empty() ? "" : ", ") + std::to_string(group);
  }
  const std::string remedy =
      dividing.empty() ? "none of the groups " + offered + " divides it, a format per token works"
                       : "groups that divide it: " + dividing;
  return unsupported(format.name + " can't store rows of " + std::to_string(dim) +
                     " channels in groups of " + std::to_string(format.group) + ": " + remedy);
}

// The formats that otherwise equal `format` and find their scales themselves.
std::string self_scaling(const FormatInfo& format) {
  const std::string_view kind =
      std::string_view(format.name).substr(0, format.name.find("_tensor"));
  std::string names;
  int count = 0;
  for (const FormatInfo& other : all_formats()) {
    const bool fits = other.name.starts_with(kind) && other.family == format.family &&
                      other.scale_source != ScaleSource::kGiven && !other.rotated;
    if (fits && ++count <= 3) names += (names.empty() ? "" : ", ") + other.name;
  }
  return names;
}

// A given scale is checked in the type that it is stored in.
Status check_given_scale(const FormatInfo& format, const CodecBinding& binding) {
  const bool must = format.scale_source == ScaleSource::kGiven;
  if (binding.artifacts == nullptr) return must ? missing_scale(format) : Status();
  const float given = must ? binding.artifacts->tensor_scale : binding.artifacts->head_scale;
  if (!must && given == 0) return {};
  if (!takes_given_scale(format))
    return unsupported(format.name + " finds its own scales and takes none per head");
  if (scale_can_be_stored(given)) return {};
  char seen[32];
  std::snprintf(seen, sizeof seen, "%g", static_cast<double>(given));
  return invalid_argument(
      format.name + ": the scale " + seen + " given for layer " + std::to_string(binding.layer) +
      ", head " + std::to_string(binding.kv_head) + ", " + std::string(side_name(binding.side)) +
      " isn't a positive finite number that binary16 holds");
}

}  // namespace

std::string_view side_name(Side side) { return side == Side::kKey ? "K" : "V"; }

std::string_view granularity_name(Granularity g) {
  constexpr std::array<std::string_view, 6> kNames = {"none",  "tensor", "head",
                                                      "token", "group",  "channel"};
  return kNames[static_cast<size_t>(g)];
}

std::string_view scale_source_name(ScaleSource s) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "fixed", "dynamic", "given"};
  return kNames[static_cast<size_t>(s)];
}

const std::vector<FormatDefinition>& all_definitions() { return registry().definitions; }

std::span<const FormatInfo> all_formats() { return registry().infos; }

const FormatDefinition& definition_of(const FormatInfo& format) {
  return registry().definitions[registry().by_name.at(format.name)];
}

Result<const FormatInfo*> find_format(std::string_view name) {
  const auto found = registry().by_name.find(name);
  if (found != registry().by_name.end()) return &registry().infos[found->second];
  std::vector<std::string_view> names;
  for (const FormatInfo& info : all_formats()) names.push_back(info.name);
  return not_found("unknown format \"" + printable(name) +
                   "\"; the closest are: " + nearest_names(name, names, 3));
}

Result<std::unique_ptr<Codec>> bind_any(const FormatInfo& format, Side side, int dim) {
  std::vector<float> tensor;
  if (const auto& any = definition_of(format).any_artifact; any && dim > 0 && dim <= kMaxDim)
    tensor = any(dim);
  const CodecArtifacts artifacts{.tensor = tensor};
  CodecBinding binding;
  binding.side = side;
  binding.dim = dim;
  binding.artifacts = &artifacts;
  return bind_codec(format, binding);
}

Result<double> sealed_bits(const FormatInfo& format, Side side, int dim) {
  KVANT_ASSIGN(const std::unique_ptr<Codec> codec, bind_any(format, side, dim));
  return static_cast<double>(codec->page_bytes() * 8) / (kPageTokens * dim);
}

bool takes_given_scale(const FormatInfo& format) {
  return format.scale_source == ScaleSource::kGiven ||
         (format.granularity == Granularity::kHead && !format.zero_point);
}

Status missing_scale(const FormatInfo& format) {
  return unsupported(format.name +
                     " has one scale for all its values, which calibration or the library's caller "
                     "must give, and none was given; formats that find their own scales: " +
                     self_scaling(format));
}

Result<std::unique_ptr<Codec>> bind_codec(const FormatInfo& format, const CodecBinding& binding) {
  if (!(binding.side == Side::kKey ? format.for_keys : format.for_values)) {
    return unsupported(format.name + " can't store " + std::string(side_name(binding.side)) +
                       ", only " + (format.for_keys ? "K" : "V"));
  }
  if (binding.dim < 16 || binding.dim > kMaxDim || binding.dim % 16 != 0) {
    return unsupported(format.name + " can't store rows of " + std::to_string(binding.dim) +
                       " channels: a width is a multiple of 16 from 16 to " +
                       std::to_string(kMaxDim));
  }
  KVANT_TRY(check_group(format, binding.dim));
  KVANT_TRY(check_given_scale(format, binding));
  const FormatDefinition& definition = definition_of(format);
  if (definition.check) KVANT_TRY(definition.check(format, binding));
  return definition.make(binding);
}

}  // namespace kvant
