#include "cli/scale_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/terminal.h"
#include "formats/given_scale.h"

namespace kvant::cli {
namespace {

constexpr double kMuchBeyond = 0.01;  // share of numbers that no method of ours would give up
// A scale may hold so many times what was seen: four of an integer's eight bits are lost then.
constexpr double kMuchRoom = 16;
// No K or V is larger that a model meant to run in binary16, up to 65,504, could have; statistics
// end there, too (calibrate/magnitudes.h).
constexpr double kMostPlausible = 65536;

struct SideRow {
  char letter;
  const SideScales LayerScales::*scales;
};
constexpr SideRow kSides[] = {
    {'q', &LayerScales::query}, {'k', &LayerScales::key}, {'v', &LayerScales::value}};

double share_beyond(const SideScales& side, const std::string& format, int head, int64_t tokens) {
  const auto found = side.beyond.find(format);
  if (found == side.beyond.end() || found->second.empty() || tokens == 0) return -1;
  const std::vector<int64_t>& counts = found->second;
  double sum = 0, heads = 0;
  for (size_t h = 0; h < counts.size(); ++h) {
    if (head >= 0 && static_cast<size_t>(head) != h) continue;
    sum += static_cast<double>(counts[h]);
    heads += 1;
  }
  return heads > 0 ? sum / (heads * static_cast<double>(tokens) * std::max(side.dim, 1)) : -1;
}

double largest_of(const SideScales& side, int head) {
  if (head >= 0) return double{side.largest(static_cast<size_t>(head))};
  double most = 0;
  for (size_t h = 0; h < side.low.size(); ++h) most = std::max(most, double{side.largest(h)});
  return most;
}

// What the text showed where the scale is for; of rotated rows that isn't kept.
void set_seen(const SideScales& side, bool rotated, ScaleEntry& entry) {
  if (rotated) {
    entry.largest = 0;
    return;
  }
  entry.largest = largest_of(side, entry.head);
  const auto head = static_cast<size_t>(entry.head);
  const SideClips& clips = side.clips;
  if (entry.head < 0) entry.clips = clips.tensor;
  if (entry.head >= 0 && head < clips.heads.size()) entry.clips = clips.heads[head];
  if (entry.head >= 0 && head < clips.channels.size()) entry.channels = &clips.channels[head];
}

Json clips_json(const Clips& clips) {
  Json out = Json::object();
  for (size_t i = 0; i < kNumClips; ++i) out[std::string(kClipNames[i])] = clips[i];
  return out;
}

Json clips_json(std::span<const Clips> clips) {
  Json out = Json::array();
  for (const Clips& one : clips) out.push_back(clips_json(one));
  return out;
}

// Of a side, for everything that was seen of it.
Json clips_json(const SideClips& clips) {
  Json channels = Json::array();
  for (const std::vector<Clips>& head : clips.channels) channels.push_back(clips_json(head));
  return {{"tensor", clips_json(clips.tensor)},
          {"heads", clips_json(clips.heads)},
          {"channels", channels}};
}

std::string clip_text(const Clips& clips, size_t which) {
  return clips[which] > 0 ? short_number(double{clips[which]}) : "-";
}

// The narrowest and the widest channel of a head, by what all but a thousandth of it holds.
std::string channels_text(const std::vector<Clips>* channels) {
  if (channels == nullptr || channels->empty()) return "-";
  float least = channels->front()[kClip999], most = least;
  for (const Clips& clips : *channels) {
    least = std::min(least, clips[kClip999]);
    most = std::max(most, clips[kClip999]);
  }
  return fmt::format("{} to {}", short_number(double{least}), short_number(double{most}));
}

std::string percent(double share) {
  if (share < 0) return "-";
  return share == 0 ? "0 %" : fmt::format("{} %", short_number(100 * share));
}

// Over the layers, of one side and format.
struct SideSummary {
  double least = 0, most = 0, beyond = 0, numbers = 0;
  int layers = 0;

  void add(const SideScales& side, const std::string& format, int64_t tokens) {
    const auto found = side.scales.find(format);
    if (found == side.scales.end()) return;
    for (const float scale : found->second) {
      least = most == 0 ? double{scale} : std::min(least, double{scale});
      most = std::max(most, double{scale});
    }
    ++layers;
    const auto counts = side.beyond.find(format);
    for (size_t h = 0; counts != side.beyond.end() && h < counts->second.size(); ++h) {
      beyond += static_cast<double>(counts->second[h]);
      numbers += static_cast<double>(tokens) * side.dim;
    }
  }
  std::string text(char name) const {
    const std::string range =
        least == most ? short_number(least) : short_number(least) + " to " + short_number(most);
    return fmt::format("{} {} ({} beyond)", name, range,
                       percent(numbers > 0 ? beyond / numbers : -1));
  }
};

}  // namespace

void judge(ScaleEntry& e) {
  if (!e.complaint.empty()) return;
  const ScaledFormat* format = find_scaled_format(e.format);
  const bool is_integer = format == nullptr || format->name.starts_with("int");
  const double unit = is_integer ? 1 : 0x1p-6;
  const double holds = format == nullptr ? 0 : e.scale * double{format->largest};
  if (std::isnan(e.scale)) {
    e.complaint = "NaN";
  } else if (e.scale == 0) {
    e.complaint = "zero";
  } else if (e.scale < 0) {
    e.complaint = "negative";
  } else if (!scale_can_be_stored(static_cast<float>(e.scale))) {
    e.complaint = "beyond what binary16 holds";
  } else if (format != nullptr && e.beyond > kMuchBeyond) {
    e.complaint = fmt::format("absurd: holds {}, {} was seen, {} lie beyond", short_number(holds),
                              short_number(e.largest), percent(e.beyond));
  } else if (e.largest > 0 && e.largest / e.scale < unit) {
    e.complaint = fmt::format("absurd: all that was seen, up to {}, is lost below its first step",
                              short_number(e.largest));
  } else if (is_integer && e.largest > 0 && holds > kMuchRoom * e.largest) {
    e.complaint = fmt::format("absurd: holds {}, only {} was seen", short_number(holds),
                              short_number(e.largest));
  } else if (e.largest == 0 && holds > kMostPlausible) {
    e.complaint = fmt::format("absurd: holds {}, no K, V or Q is beyond {}", short_number(holds),
                              kMostPlausible);
  }
}

double largest_seen(const CacheScales& scales, int layer, char side, int head) {
  if (layer < 0 || static_cast<size_t>(layer) >= scales.layers.size()) return 0;
  for (const SideRow& row : kSides) {
    if (row.letter == side)
      return largest_of(scales.layers[static_cast<size_t>(layer)].*row.scales, head);
  }
  return 0;
}

std::vector<ScaleEntry> scale_entries(const CacheScales& scales, const std::string& file) {
  std::vector<ScaleEntry> out;
  const std::string origin = fmt::format("{}: {}{}", file, scales.source,
                                         scales.method.empty() ? "" : ", " + scales.method);
  const std::vector<std::string> formats = scales.all_formats();
  for (size_t l = 0; l < scales.layers.size(); ++l) {
    for (const SideRow& row : kSides) {
      const SideScales& side = scales.layers[l].*row.scales;
      for (const std::string& format : formats) {
        ScaleEntry entry;
        entry.layer = static_cast<int>(l);
        entry.side = row.letter;
        entry.format = format;
        entry.origin = origin;
        const auto found = side.scales.find(format);
        if (found == side.scales.end()) {
          entry.complaint = "missing";
          if (row.letter != 'q') out.push_back(entry);
          continue;
        }
        const ScaledFormat* known = find_scaled_format(format);
        for (size_t h = 0; h < found->second.size(); ++h) {
          entry.head = known != nullptr && known->per_head ? static_cast<int>(h) : -1;
          entry.scale = double{found->second[h]};
          set_seen(side, known != nullptr && known->rotated, entry);
          entry.beyond = share_beyond(side, format, entry.head, scales.checked_tokens);
          entry.complaint.clear();
          judge(entry);
          out.push_back(entry);
        }
      }
    }
  }
  return out;
}

std::string learned_text(const Sidecar& sidecar) {
  if (!sidecar.is_calibration()) return "nothing but sensitivities";
  const SidecarFacts& facts = sidecar.facts();
  if (facts.data.empty()) return "no text";  // scales fixed at 1
  const std::string tokens = counted(facts.tokens, "token");
  if (facts.data.starts_with("random")) return fmt::format("{}: {}", tokens, facts.data);
  return fmt::format("{} of text {}", tokens, facts.data.substr(0, 8));
}

std::string sidecar_heading(const Sidecar& sidecar) {
  const SidecarFacts& facts = sidecar.facts();
  std::string out = fmt::format("{}: of model {}, {}", sidecar.path().string(),
                                facts.model.substr(0, 8), learned_text(sidecar));
  if (sidecar.is_calibration())
    out += fmt::format(", seed {}\n  made by {}", facts.seed, facts.command);
  return out + "\n";
}

std::string scale_summary(const CacheScales& scales, std::string_view checked_on) {
  std::string out;
  for (const std::string& format : scales.all_formats()) {
    SideSummary key, value;
    for (const LayerScales& layer : scales.layers) {
      key.add(layer.key, format, scales.checked_tokens);
      value.add(layer.value, format, scales.checked_tokens);
    }
    out += fmt::format("{}: scales of {} from {}{}: {}, {}", format, counted(key.layers, "layer"),
                       scales.source, scales.method.empty() ? "" : ", " + scales.method,
                       key.text('K'), value.text('V'));
    out += checked_on.empty() ? "\n"
                              : fmt::format("; checked on {} of {}\n",
                                            counted(scales.checked_tokens, "token"), checked_on);
  }
  return out;
}

Json scales_json(const CacheScales& scales) {
  Json out = {{"source", scales.source},
              {"method", scales.method},
              {"checked_on", scales.checked_on},
              {"checked_tokens", scales.checked_tokens},
              {"layers", Json::array()}};
  for (const LayerScales& layer : scales.layers) {
    Json one = Json::object();
    for (const SideRow& row : kSides) {
      const SideScales& side = layer.*row.scales;
      Json& to = one[std::string(1, row.letter)] = Json::object();
      for (const auto& [format, values] : side.scales) to["scales"][format] = values;
      for (const auto& [format, counts] : side.beyond) to["beyond"][format] = counts;
      if (!side.low.empty()) to.update({{"low", side.low}, {"high", side.high}});
      if (!side.clips.heads.empty()) to["clips"] = clips_json(side.clips);
    }
    out["layers"].push_back(std::move(one));
  }
  return out;
}

int64_t count_wrong(std::span<const ScaleEntry> entries) {
  return std::count_if(entries.begin(), entries.end(),
                       [](const ScaleEntry& e) { return !e.complaint.empty(); });
}

Json entries_json(std::span<const ScaleEntry> entries) {
  Json out = Json::array();
  for (const ScaleEntry& e : entries) {
    const bool missing = e.complaint == "missing";
    out.push_back({{"layer", e.layer},
                   {"side", std::string(1, e.side)},
                   {"head", e.head < 0 ? Json() : Json(e.head)},
                   {"format", e.format},
                   {"scale", missing || !std::isfinite(e.scale) ? Json() : Json(e.scale)},
                   {"largest", e.largest > 0 ? Json(e.largest) : Json()},
                   {"clips", e.clips[0] > 0 ? clips_json(e.clips) : Json()},
                   {"channels", e.channels != nullptr ? clips_json(*e.channels) : Json()},
                   {"beyond", e.beyond >= 0 ? Json(e.beyond) : Json()},
                   {"origin", e.origin},
                   {"complaint", e.complaint}});
  }
  return out;
}

std::string entries_table(std::span<const ScaleEntry> entries, bool colored) {
  Table table({{"layer"},
               {"side", true},
               {"head"},
               {"format", true},
               {"scale"},
               {"seen"},
               {"99.9 %"},
               {"8-bit clip"},
               {"channels"},
               {"beyond"},
               {"from", true},
               {"", true}});
  const int64_t complaints = count_wrong(entries);
  bool all_one = !entries.empty();
  for (const ScaleEntry& e : entries) {
    const bool missing = e.complaint == "missing";
    all_one = all_one && !missing && e.scale == 1;
    table.add_row({{std::to_string(e.layer)},
                   {std::string(1, static_cast<char>(e.side - 'a' + 'A'))},
                   {e.head < 0 ? "all" : std::to_string(e.head)},
                   {e.format},
                   {missing ? "-" : fmt::format("{:.6g}", e.scale)},
                   {e.largest > 0 ? short_number(e.largest) : "-"},
                   {clip_text(e.clips, kClip999)},
                   {clip_text(e.clips, kClipMse8)},
                   {channels_text(e.channels)},
                   {percent(e.beyond)},
                   {e.origin},
                   {e.complaint, Color::kRed}});
  }
  std::string out = table.render(colored);
  out += fmt::format(
      "{} listed, {}\n", counted(static_cast<int64_t>(entries.size()), "scale"),
      complaints == 0 ? "nothing wrong with them" : fmt::format("{} wrong", complaints));
  if (all_one) out += "every scale is exactly 1: fixed, or never calibrated\n";
  return out;
}

}  // namespace kvant::cli
