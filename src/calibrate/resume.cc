#include "calibrate/resume.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "files/durable_file.h"
#include "files/safetensors.h"
#include "files/safetensors_writer.h"

namespace kvant {
namespace {

// One pass over everything that is kept, for writing and for reading: `visit(name, dtype, values)`.
template <typename Visit>
Status visit_keys(std::span<LayerMoments> layers, const Visit& visit) {
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t h = 0; h < layers[l].heads.size(); ++h) {
      HeadMoments& head = layers[l].heads[h];
      const std::string at = "moments." + std::to_string(l) + "." + std::to_string(h) + ".";
      std::vector<int64_t> counts = {head.num_queries, head.num_keys};
      KVANT_TRY(visit(at + "query", "F64", head.query));
      KVANT_TRY(visit(at + "key", "F64", head.key));
      KVANT_TRY(visit(at + "counts", "I64", counts));
      head.num_queries = counts[0];
      head.num_keys = counts[1];
    }
  }
  return {};
}

// All channels of a head in three tensors.
template <typename Visit>
Status visit_channels(std::vector<ChannelMagnitudes>& channels, const std::string& name,
                      const Visit& visit) {
  if (channels.empty()) return {};
  std::vector<int64_t> octaves, zeros;
  std::vector<uint32_t> counters(channels.size() * ChannelMagnitudes::kCounters);
  for (size_t i = 0; i < channels.size(); ++i) {
    const std::span<const uint32_t> seen = channels[i].counters();
    octaves.push_back(channels[i].octave());
    zeros.push_back(channels[i].zeros());
    std::copy(seen.begin(), seen.end(), counters.data() + i * ChannelMagnitudes::kCounters);
  }
  KVANT_TRY(visit(name + "channel_octaves", "I64", octaves));
  KVANT_TRY(visit(name + "channel_zeros", "I64", zeros));
  KVANT_TRY(visit(name + "channel_counters", "U32", counters));
  for (size_t i = 0; i < channels.size(); ++i) {
    if (octaves[i] > ChannelMagnitudes::kMostOctave)
      return corrupt(name + "channel_octaves: " + std::to_string(octaves[i]) + " is no octave");
    channels[i].restore(static_cast<int>(octaves[i]), zeros[i],
                        std::span(counters).subspan(i * ChannelMagnitudes::kCounters,
                                                    ChannelMagnitudes::kCounters));
  }
  return {};
}

template <typename Visit>
Status visit_side(SideRange& side, const std::string& name, const Visit& visit) {
  for (size_t h = 0; h < side.heads.size(); ++h) {
    HeadRange& head = side.heads[h];
    const std::string at = name + std::to_string(h) + ".";
    const auto seen = head.magnitudes.counters();
    std::vector<int64_t> counters(seen.begin(), seen.end());
    KVANT_TRY(visit(at + "low", "F32", head.low));
    KVANT_TRY(visit(at + "high", "F32", head.high));
    KVANT_TRY(visit(at + "counters", "I64", counters));
    head.magnitudes = Magnitudes(std::move(counters));
    KVANT_TRY(visit_channels(head.channels, at, visit));
  }
  return {};
}

template <typename Visit>
Status visit_ranges(std::span<LayerRanges> layers, const std::string& name, const Visit& visit) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::string at = name + "." + std::to_string(l);
    KVANT_TRY(visit_side(layers[l].query, at + ".q.", visit));
    KVANT_TRY(visit_side(layers[l].key, at + ".k.", visit));
    KVANT_TRY(visit_side(layers[l].value, at + ".v.", visit));
  }
  return {};
}

template <typename Visit>
Status visit_all(const Statistics& all, const Visit& visit) {
  if (all.keys != nullptr) KVANT_TRY(visit_keys(all.keys->layers(), visit));
  if (all.ranges != nullptr) KVANT_TRY(visit_ranges(all.ranges->layers(), "ranges", visit));
  if (all.rotated != nullptr) KVANT_TRY(visit_ranges(all.rotated->layers(), "rotated", visit));
  return {};
}

// Ranges that nothing was seen of yet are infinite.
bool can_be_kept(float x) { return !std::isnan(x); }
bool can_be_kept(double x) { return std::isfinite(x); }
bool can_be_kept(int64_t x) { return x >= 0; }
bool can_be_kept(uint32_t) { return true; }

Result<int64_t> read_count(const Safetensors& file, const std::filesystem::path& path,
                           const char* key) {
  const std::string* text = file.metadata(key);
  int64_t value = 0;
  if (text == nullptr ||
      std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc() ||
      value < 0)
    return corrupt(path.string() + ": " + key +
                   " is missing or negative; wanted the state of a calibration");
  return value;
}

}  // namespace

SeenRanges seen_by(const Statistics& statistics) {
  SeenRanges seen{.plain = std::as_const(*statistics.ranges).layers(), .rotated = {}};
  if (statistics.rotated != nullptr) seen.rotated = std::as_const(*statistics.rotated).layers();
  return seen;
}

Status save_state(const std::filesystem::path& path, const CalibrationState& state,
                  const Statistics& statistics) {
  SafetensorsWriter writer;
  KVANT_TRY(visit_all(statistics,
                      [&](const std::string& name, const char* dtype, auto& values) -> Status {
                        writer.add(name, dtype, {values.size()}, values);
                        return {};
                      }));
  const std::pair<std::string, std::string> metadata[] = {
      {"identity", state.identity},
      {"documents", std::to_string(state.documents)},
      {"tokens", std::to_string(state.tokens)},
      {"too_short", std::to_string(state.too_short)},
      {"skipped", std::to_string(state.skipped)}};
  return write_durably(path, writer.finish(metadata));
}

Result<CalibrationState> load_state(const std::filesystem::path& path, const std::string& identity,
                                    const Statistics& statistics) {
  KVANT_ASSIGN(const std::unique_ptr<Safetensors> file, Safetensors::open_file(path));
  const std::string* found = file->metadata("identity");
  if (found == nullptr || *found != identity) {
    return invalid_argument(path.string() +
                            " is of another calibration: model, text or options differ");
  }
  CalibrationState state{.identity = identity};
  KVANT_ASSIGN(state.documents, read_count(*file, path, "documents"));
  KVANT_ASSIGN(state.tokens, read_count(*file, path, "tokens"));
  KVANT_ASSIGN(state.too_short, read_count(*file, path, "too_short"));
  KVANT_ASSIGN(state.skipped, read_count(*file, path, "skipped"));
  KVANT_TRY(visit_all(
      statistics, [&](const std::string& name, const char* dtype, auto& values) -> Status {
        const SafetensorsTensor* tensor = file->tensor(name);
        const size_t bytes = values.size() * sizeof(values[0]);
        if (tensor == nullptr || tensor->dtype != dtype || tensor->data.size() != bytes) {
          return corrupt(path.string() + ": tensor " + in_quotes(name) + " isn't there whole");
        }
        std::memcpy(values.data(), tensor->data.data(), bytes);
        if (std::all_of(values.begin(), values.end(), [](auto x) { return can_be_kept(x); }))
          return {};
        return corrupt(
            path.string() + ": tensor " + in_quotes(name) +
            " holds numbers that no sum can be, wanted finite ones, and no count below 0");
      }));
  return state;
}

}  // namespace kvant
