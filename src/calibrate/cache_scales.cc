#include "calibrate/cache_scales.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "calibrate/layer_tensor.h"
#include "formats/given_scale.h"

namespace kvant {
namespace {

struct SideRow {
  std::string_view letter;
  SideScales LayerScales::*scales;
  SideRange LayerRanges::*ranges;
};
constexpr std::array<SideRow, 3> kSides = {{{"q", &LayerScales::query, &LayerRanges::query},
                                            {"k", &LayerScales::key, &LayerRanges::key},
                                            {"v", &LayerScales::value, &LayerRanges::value}}};

constexpr std::string_view kClips = ".clips";

std::vector<float> side_scales(const SideRange& range, const ScaledFormat& format,
                               const ScaleMethod& method) {
  if (!format.per_head) return {fit_scale(range.all(), format, method)};
  std::vector<float> out;
  for (const HeadRange& head : range.heads)
    out.push_back(fit_scale(head.magnitudes, format, method));
  return out;
}

void copy_range(const SideRange& range, SideScales& to) {
  to.dim = range.dim;
  to.clips.tensor = find_clips(range.all().occurring());
  for (const HeadRange& head : range.heads) {
    to.low.push_back(head.low);
    to.high.push_back(head.high);
    to.clips.heads.push_back(find_clips(head.magnitudes.occurring()));
    if (head.channels.empty()) continue;
    std::vector<Clips>& channels = to.clips.channels.emplace_back();
    for (const ChannelMagnitudes& channel : head.channels)
      channels.push_back(find_clips(channel.occurring()));
  }
}

// False where K or V has no scale.
bool fit_layer(const SeenRanges& seen, size_t layer, const ScaleRequest& request, LayerScales& to) {
  bool whole = true;
  for (const ScaledFormat* format : request.formats) {
    const LayerRanges& ranges = seen.of(*format)[layer];
    std::array<std::vector<float>, kSides.size()> found;
    bool usable = true;
    for (size_t s = 0; s < kSides.size(); ++s) {
      found[s] = side_scales(ranges.*kSides[s].ranges, *format, request.method);
      const bool positive = std::all_of(found[s].begin(), found[s].end(), scale_can_be_stored);
      if (!positive && kSides[s].letter == "q") found[s].clear();
      usable = usable && (positive || kSides[s].letter == "q");
    }
    whole = whole && usable;
    for (size_t s = 0; usable && s < kSides.size(); ++s) {
      if (!found[s].empty())
        (to.*kSides[s].scales).scales[std::string(format->name)] = std::move(found[s]);
    }
  }
  for (const SideRow& side : kSides) copy_range(seen.plain[layer].*side.ranges, to.*side.scales);
  return whole;
}

bool owns_both(const LayerRanges& ranges) {
  return !ranges.key.heads.empty() && !ranges.value.heads.empty();
}

std::string tensor_name(size_t layer, std::string_view side, std::string_view what) {
  return "layers." + std::to_string(layer) + "." + std::string(side) + "." + std::string(what);
}

template <typename T>
std::vector<T> joined(const std::vector<std::vector<T>>& rows) {
  std::vector<T> out;
  for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
  return out;
}

void add_numbers(std::span<const Clips> clips, std::vector<float>& to) {
  for (const Clips& one : clips) to.insert(to.end(), one.begin(), one.end());
}

void write_clips(const SideClips& clips, size_t layer, std::string_view letter,
                 SafetensorsWriter& writer) {
  if (clips.heads.empty()) return;
  const auto add = [&](std::string_view what, std::vector<uint64_t> shape,
                       const std::vector<float>& numbers) {
    shape.push_back(kNumClips);
    writer.add(tensor_name(layer, letter, what), "F32", std::move(shape), numbers);
  };
  std::vector<float> heads, channels;
  add_numbers(clips.heads, heads);
  for (const std::vector<Clips>& head : clips.channels) add_numbers(head, channels);
  add("tensor.clips", {}, {clips.tensor.begin(), clips.tensor.end()});
  add("head.clips", {clips.heads.size()}, heads);
  if (!channels.empty())
    add("channel.clips", {clips.channels.size(), clips.channels[0].size()}, channels);
}

// False where a tensor isn't what write_clips() writes under that name.
bool read_clips(const SafetensorsTensor& tensor, std::string_view what, SideClips& to) {
  const size_t dims = what == "tensor.clips" ? 1 : what == "head.clips" ? 2 : 3;
  if (tensor.dtype != "F32" || tensor.shape.size() != dims || tensor.shape.back() != kNumClips)
    return false;
  std::vector<Clips> all(tensor.data.size() / sizeof(Clips));
  if (all.empty()) return false;
  std::memcpy(all.data(), tensor.data.data(), all.size() * sizeof(Clips));
  if (dims == 1) {
    to.tensor = all.front();
  } else if (dims == 2) {
    to.heads = std::move(all);
  } else {
    const auto width = static_cast<ptrdiff_t>(tensor.shape[1]);
    for (auto at = all.begin(); at != all.end(); at += width)
      to.channels.emplace_back(at, at + width);
  }
  return true;
}

void write_side(const SideScales& side, size_t layer, std::string_view letter,
                SafetensorsWriter& writer) {
  for (const auto& [format, scales] : side.scales)
    writer.add(tensor_name(layer, letter, format + ".scale"), "F32", {scales.size()}, scales);
  for (const auto& [format, beyond] : side.beyond)
    writer.add(tensor_name(layer, letter, format + ".beyond"), "I64", {beyond.size()}, beyond);
  if (side.low.empty()) return;
  const std::vector<uint64_t> shape = {side.low.size(), static_cast<uint64_t>(side.dim)};
  writer.add(tensor_name(layer, letter, "low"), "F32", shape, joined(side.low));
  writer.add(tensor_name(layer, letter, "high"), "F32", shape, joined(side.high));
  write_clips(side.clips, layer, letter, writer);
}

// The numbers of a tensor of up to two dimensions, row by row; nothing where it is another type.
template <typename T>
std::vector<std::vector<T>> rows_of(const SafetensorsTensor& tensor, std::string_view dtype,
                                    size_t dims) {
  if (tensor.dtype != dtype || tensor.shape.size() != dims || tensor.data.empty()) return {};
  const size_t width = tensor.shape.back();
  std::vector<std::vector<T>> out(dims == 2 ? tensor.shape[0] : 1, std::vector<T>(width));
  for (size_t r = 0; r < out.size(); ++r)
    std::memcpy(out[r].data(), tensor.data.data() + r * width * sizeof(T), width * sizeof(T));
  return out;
}

// Takes a tensor whose name ends in `what`; false where it isn't one of these.
bool read_side(const SafetensorsTensor& tensor, std::string_view what, SideScales& to) {
  constexpr std::string_view kScale = ".scale", kBeyond = ".beyond";
  if (what.ends_with(kClips)) return read_clips(tensor, what, to.clips);
  if (what == "low" || what == "high") {
    auto& rows = what == "low" ? to.low : to.high;
    rows = rows_of<float>(tensor, "F32", 2);
    if (!rows.empty()) to.dim = static_cast<int>(rows[0].size());
    return !rows.empty();
  }
  if (what.ends_with(kScale)) {
    auto rows = rows_of<float>(tensor, "F32", 1);
    if (rows.empty()) return false;
    to.scales[std::string(what.substr(0, what.size() - kScale.size()))] = std::move(rows[0]);
    return true;
  }
  auto rows = rows_of<int64_t>(tensor, "I64", 1);
  if (rows.empty()) return false;
  to.beyond[std::string(what.substr(0, what.size() - kBeyond.size()))] = std::move(rows[0]);
  return true;
}

bool is_ours(std::string_view what) {
  return what == "low" || what == "high" || what.ends_with(".scale") || what.ends_with(".beyond") ||
         what.ends_with(kClips);
}

}  // namespace

float SideScales::largest(size_t head) const {
  float most = 0;
  if (head >= low.size() || head >= high.size()) return most;
  for (const float x : low[head]) most = std::isfinite(x) ? std::max(most, std::fabs(x)) : most;
  for (const float x : high[head]) most = std::isfinite(x) ? std::max(most, std::fabs(x)) : most;
  return most;
}

const std::vector<float>* CacheScales::find(int layer, Side side, std::string_view format) const {
  if (layer < 0 || static_cast<size_t>(layer) >= layers.size()) return nullptr;
  const LayerScales& of = layers[static_cast<size_t>(layer)];
  const auto& scales = (side == Side::kKey ? of.key : of.value).scales;
  const auto found = scales.find(format);
  return found == scales.end() ? nullptr : &found->second;
}

std::vector<std::string> CacheScales::formats(int layer, int num_heads) const {
  std::vector<std::string> out;
  for (const ScaledFormat& format : scaled_formats()) {
    const size_t wanted = format.per_head ? static_cast<size_t>(num_heads) : 1;
    const auto* key = find(layer, Side::kKey, format.name);
    const auto* value = find(layer, Side::kValue, format.name);
    if (key != nullptr && value != nullptr && key->size() == wanted && value->size() == wanted)
      out.emplace_back(format.name);
  }
  return out;
}

std::vector<std::string> CacheScales::all_formats() const {
  std::set<std::string> names;
  for (const LayerScales& layer : layers) {
    for (const auto& [format, scales] : layer.key.scales) names.insert(format);
  }
  return {names.begin(), names.end()};
}

Status CacheScales::check(const std::string& file) const {
  for (size_t l = 0; l < layers.size(); ++l) {
    for (const SideRow& side : kSides) {
      for (const auto& [format, scales] : (layers[l].*side.scales).scales) {
        for (const float scale : scales) {
          KVANT_TRY(check_stored_scale(
              scale, file + ": tensor " + tensor_name(l, side.letter, format + ".scale")));
        }
      }
    }
  }
  return {};
}

bool needs_rotated(const ScaleRequest& request) {
  return std::any_of(request.formats.begin(), request.formats.end(),
                     [](const ScaledFormat* format) { return format->rotated; });
}

CacheScales fit_scales(const SeenRanges& seen, const ScaleRequest& request, ThreadPool& threads,
                       std::vector<int>& without) {
  const std::span<const LayerRanges> ranges = seen.plain;
  CacheScales out;
  out.layers.resize(ranges.size());
  std::vector<char> whole(ranges.size(), 1);
  threads.run(ranges.size(), [&](size_t l, int) {
    if (owns_both(ranges[l])) whole[l] = fit_layer(seen, l, request, out.layers[l]) ? 1 : 0;
  });
  for (size_t l = 0; l < whole.size(); ++l) {
    if (whole[l] == 0) without.push_back(static_cast<int>(l));
  }
  return out;
}

CacheScales fixed_scales(std::span<const CacheLayer> layers, int num_query_heads,
                         const ScaleRequest& request) {
  CacheScales out;
  for (const CacheLayer& layer : layers) {
    LayerScales& to = out.layers.emplace_back();
    if (layer.shares >= 0 || layer.num_kv_heads == 0 ||
        layer.value_source != ValueSource::kOwnStream)
      continue;
    for (const ScaledFormat* format : request.formats) {
      const std::string name(format->name);
      const auto count = [&](int heads) {
        return static_cast<size_t>(format->per_head ? heads : 1);
      };
      to.query.scales[name].assign(count(num_query_heads), 1.0f);
      to.key.scales[name].assign(count(layer.num_kv_heads), 1.0f);
      to.value.scales[name].assign(count(layer.num_kv_heads), 1.0f);
    }
  }
  return out;
}

void count_beyond(const SeenRanges& seen, CacheScales& scales) {
  scales.checked_tokens = 0;
  for (size_t l = 0; l < scales.layers.size(); ++l) {
    for (const SideRow& side : kSides) {
      SideScales& to = scales.layers[l].*side.scales;
      for (const auto& [name, values] : to.scales) {
        const ScaledFormat* format = find_scaled_format(name);
        if (format == nullptr || seen.of(*format).empty()) continue;
        const SideRange& range = seen.of(*format)[l].*side.ranges;
        std::vector<int64_t> beyond;
        for (size_t h = 0; h < range.heads.size(); ++h) {
          const float scale = values[format->per_head ? h : 0];
          // The product may round to just below the largest; bfloat16s are 2^-8 apart.
          const float limit = scale * format->largest * (1 + 0x1p-20f);
          beyond.push_back(range.heads[h].magnitudes.beyond(limit));
          scales.checked_tokens = range.heads[h].magnitudes.count() / std::max(range.dim, 1);
        }
        to.beyond[name] = std::move(beyond);
      }
    }
  }
}

void write_scales(const CacheScales& scales, SafetensorsWriter& writer,
                  std::vector<std::pair<std::string, std::string>>& metadata) {
  if (scales.source.empty()) return;
  metadata.emplace_back("kvant.scales.source", scales.source);
  metadata.emplace_back("kvant.scales.method", scales.method);
  metadata.emplace_back("kvant.scales.checked_on", scales.checked_on);
  metadata.emplace_back("kvant.scales.checked_tokens", std::to_string(scales.checked_tokens));
  for (size_t l = 0; l < scales.layers.size(); ++l) {
    for (const SideRow& side : kSides)
      write_side(scales.layers[l].*side.scales, l, side.letter, writer);
  }
}

Result<CacheScales> read_scales(const Safetensors& file) {
  CacheScales out;
  const auto text = [&](const char* key) {
    const std::string* found = file.metadata(key);
    return found == nullptr ? std::string() : *found;
  };
  out.source = text("kvant.scales.source");
  out.method = text("kvant.scales.method");
  out.checked_on = text("kvant.scales.checked_on");
  const std::string tokens = text("kvant.scales.checked_tokens");
  std::from_chars(tokens.data(), tokens.data() + tokens.size(), out.checked_tokens);
  for (const SafetensorsTensor& tensor : file.tensors()) {
    const std::optional<LayerTensorName> name = split_layer_tensor(tensor.name);
    if (!name || !is_ours(name->what)) continue;
    for (const SideRow& side : kSides) {
      if (side.letter != name->side) continue;
      if (out.layers.size() <= name->layer) out.layers.resize(name->layer + 1);
      if (read_side(tensor, name->what, out.layers[name->layer].*side.scales)) break;
      return corrupt(file.path_of(tensor).string() + ": tensor " + in_quotes(tensor.name) +
                     " is a " + tensor.dtype + " of " + std::to_string(tensor.shape.size()) +
                     " dimensions, which no calibration writes there");
    }
  }
  return out;
}

}  // namespace kvant
