// From `--kv` and `--kv-layers` to the formats of every layer of a model, before any weight is
// loaded.
#include <algorithm>
#include <charconv>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "formats/codec.h"
#include "formats/names.h"
#include "kvant/format.h"

namespace kvant {
namespace {

constexpr std::string_view kUnasked = "auto";
constexpr std::string_view kFallback = "bf16";

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// The pieces of `text` between separators, trimmed; one empty piece for an empty text.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const size_t end = text.find(separator);
    pieces.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

// What one layer is asked to use. `named`: the user wrote this format out, so it isn't changed
// behind their back.
struct Wish {
  FormatPair formats;
  bool named = false;
  bool overridden = false;
};

bool names_a_preset(std::string_view text) {
  for (const std::string_view side : split(text, '/')) {
    if (is_preset(side)) return true;
  }
  return false;
}

// An index at the front of `text`, which is cut; negative ones count from the end.
Result<int64_t> take_index(std::string_view& text, std::string_view item, int64_t num_layers) {
  int64_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error == std::errc::invalid_argument) {
    return invalid_argument("layers \"" + printable(item) +
                            "\" aren't an index, a range such as 0-3, sliding or full");
  }
  if (error != std::errc() || index >= num_layers || index < -num_layers) {
    return invalid_argument("layers \"" + printable(item) + "\" leave the model, which has " +
                            std::to_string(num_layers) + " layers");
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return index < 0 ? index + num_layers : index;
}

// The layers that one item of a comma list names.
Result<std::vector<size_t>> parse_layers(std::string_view item,
                                         std::span<const LayerShape> layers) {
  std::vector<size_t> out;
  if (item == "sliding" || item == "full") {
    for (size_t l = 0; l < layers.size(); ++l) {
      if (layers[l].num_kv_heads > 0 && (layers[l].window > 0) == (item == "sliding")) {
        out.push_back(l);
      }
    }
    if (out.empty()) {
      return invalid_argument("layers \"" + std::string(item) + "\": the model has no such layer");
    }
    return out;
  }
  std::string_view rest = item;
  const auto num_layers = static_cast<int64_t>(layers.size());
  KVANT_ASSIGN(const int64_t first, take_index(rest, item, num_layers));
  int64_t last = first;
  if (!rest.empty()) {
    if (rest[0] != '-') {
      return invalid_argument("layers \"" + printable(item) +
                              "\" aren't an index, a range such as 0-3, sliding or full");
    }
    rest.remove_prefix(1);
    KVANT_ASSIGN(last, take_index(rest, item, num_layers));
  }
  if (!rest.empty() || last < first) {
    return invalid_argument("layers \"" + printable(item) + "\" run from " + std::to_string(first) +
                            " to " + std::to_string(last) + ", a range goes upwards");
  }
  for (int64_t l = first; l <= last; ++l) out.push_back(static_cast<size_t>(l));
  return out;
}

// Presets mean other formats where there is a calibration, and where heads are wide.
ModelTraits traits_of(const LayerShape& layer, ModelTraits traits) {
  traits.calibrated = layer.calibrated;
  traits.value_dim = layer.value_dim;
  return traits;
}

// Applies one `LAYERS=FORMAT`.
Status apply_override(std::string_view item, std::span<const LayerShape> layers,
                      const ModelTraits& traits, std::vector<Wish>& wishes) {
  const size_t equals = item.find('=');
  if (equals == std::string_view::npos) {
    return invalid_argument("layer override \"" + printable(item) + "\" isn't LAYERS=FORMAT");
  }
  const std::string_view format = trim(item.substr(equals + 1));
  for (const std::string_view which : split(item.substr(0, equals), ',')) {
    KVANT_ASSIGN(const std::vector<size_t> named, parse_layers(which, layers));
    for (const size_t l : named) {
      if (wishes[l].overridden) {
        return invalid_argument("layer " + std::to_string(l) +
                                " is named twice in the layer overrides");
      }
      KVANT_ASSIGN(const FormatPair formats,
                   parse_format_pair(format, traits_of(layers[l], traits)));
      wishes[l] = {formats, !names_a_preset(format), true};
    }
  }
  return {};
}

// Whether a layer can hold `format` on `side`: the question that the cache will ask again when it
// binds its codecs.
Result<std::unique_ptr<Codec>> bind(const std::string& format, Side side, const LayerShape& layer,
                                    int index) {
  KVANT_ASSIGN(const FormatInfo* info, find_format(format));
  const int dim = side == Side::kKey ? layer.key_dim : layer.value_dim;
  const auto& calibrated = layer.calibrated;
  if ((info->needs.artifacts || info->scale_source == ScaleSource::kGiven) &&
      std::find(calibrated.begin(), calibrated.end(), format) != calibrated.end())
    return bind_any(*info, side, dim);
  CodecBinding binding;
  binding.layer = index;
  binding.side = side;
  binding.dim = dim;
  return bind_codec(*info, binding);
}

bool is_exact(const std::string& format) {
  const auto info = find_format(format);
  return info.ok() && (*info)->exact;
}

// Why this layer can't take this format on this side; OK if it can. Adds the format to `slow` if it
// has no kernel.
Status refusal(const std::string& format, Side side, const LayerShape& layer, int index,
               std::set<std::string>& slow) {
  if (is_exact(format)) return {};
  if (!layer.quantizable) return unsupported("this layer's stream is kept exact");
  if (side == Side::kValue && layer.value_dim == 0) {
    return unsupported("this layer has no V of its own");
  }
  KVANT_ASSIGN(const std::unique_ptr<Codec> codec, bind(format, side, layer, index));
  if (!codec->has_kernel()) slow.insert(format);
  return {};
}

Status report_slow_formats(const std::set<std::string>& slow, bool strict,
                           std::vector<std::string>& notes) {
  for (const std::string& format : slow) {
    std::string note = format +
                       " has no kernel of its own: attention reads it row by row, several times "
                       "slower than other formats of its size";
    if (strict) return unsupported(std::move(note));
    notes.push_back(std::move(note));
  }
  return {};
}

void add_fallback(std::vector<FormatFallback>& fallbacks, FormatFallback one, size_t layer) {
  auto same = std::find_if(fallbacks.begin(), fallbacks.end(), [&](const FormatFallback& known) {
    return known.side == one.side && known.format == one.format && known.reason == one.reason;
  });
  if (same == fallbacks.end()) same = fallbacks.insert(same, std::move(one));
  same->layers.push_back(static_cast<int>(layer));
}

}  // namespace

Result<ResolvedFormats> resolve_formats(std::string_view kv, std::string_view overrides,
                                        std::span<const LayerShape> layers,
                                        const ModelTraits& traits, bool strict) {
  const std::string_view base = trim(kv).empty() ? kUnasked : trim(kv);
  KVANT_TRY(parse_format_pair(base, traits).status());
  std::vector<Wish> wishes;
  for (const LayerShape& layer : layers) {
    KVANT_ASSIGN(const FormatPair formats, parse_format_pair(base, traits_of(layer, traits)));
    wishes.push_back({formats, !names_a_preset(base), false});
  }
  if (!trim(overrides).empty()) {
    for (const std::string_view item : split(overrides, ';')) {
      KVANT_TRY(apply_override(item, layers, traits, wishes));
    }
  }
  ResolvedFormats out;
  std::set<std::string> slow;
  for (size_t l = 0; l < layers.size(); ++l) {
    const Wish& wish = wishes[l];
    FormatPair effective = wish.formats;
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (layers[l].num_kv_heads == 0) break;
      std::string& format = side == Side::kKey ? effective.key : effective.value;
      const Status why = refusal(format, side, layers[l], static_cast<int>(l), slow);
      if (why.ok()) continue;
      const bool stays_exact = !layers[l].quantizable || layers[l].value_dim == 0;
      if (strict || (wish.named && !stays_exact))
        return why.with_context("layer " + std::to_string(l) + " " + std::string(side_name(side)));
      add_fallback(out.fallbacks, {side, std::move(format), why.message()}, l);
      format = kFallback;
    }
    out.requested.push_back(wish.formats);
    out.effective.push_back(std::move(effective));
  }
  for (const FormatFallback& fallback : out.fallbacks) {
    out.notes.push_back((fallback.layers.size() == 1 ? "layer " : "layers ") +
                        index_ranges(fallback.layers) + ": " +
                        std::string(side_name(fallback.side)) + " uses " + std::string(kFallback) +
                        " instead of " + fallback.format + ": " + fallback.reason);
  }
  KVANT_TRY(report_slow_formats(slow, strict, out.notes));
  return out;
}

}  // namespace kvant
