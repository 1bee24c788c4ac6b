// CacheScales: the given scales of a model's layers, found from ranges or fixed, and what the
// ranges were.
//
// In a sidecar, for side s of q, k, v and layer l: `layers.<l>.<s>.<format>.scale` F32 [1], or
// [heads] of a format per head; `layers.<l>.<s>.<format>.beyond` I64 [heads], numbers of the text
// that was checked on whose magnitude a code can't stand for; `layers.<l>.<s>.low` and `.high` F32
// [heads][dim], the range of every channel.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "calibrate/clips.h"
#include "calibrate/range_statistics.h"
#include "calibrate/scale_fit.h"
#include "files/safetensors.h"
#include "files/safetensors_writer.h"

namespace kvant {

struct SideScales {
  std::map<std::string, std::vector<float>, std::less<>> scales;    // by format
  std::map<std::string, std::vector<int64_t>, std::less<>> beyond;  // by format: [head]
  int dim = 0;
  std::vector<std::vector<float>> low, high;  // [head][dim]
  SideClips clips;                            // without heads: not known

  // The largest magnitude of a head's channels; 0 where ranges aren't known.
  float largest(size_t head) const;
};

struct LayerScales {
  SideScales query, key, value;
};

struct CacheScales {
  std::string source;          // "dataset", "random" or "fixed"; empty: there are no scales
  std::string method;          // of finding them, as --method takes it
  std::string checked_on;      // the digest of the held-out text, or "the data itself"
  int64_t checked_tokens = 0;  // that `beyond` counts, of every head
  std::vector<LayerScales> layers;

  // Formats that a layer's K and V both have whole sets of scales for.
  std::vector<std::string> formats(int layer, int num_heads) const;
  std::vector<std::string> all_formats() const;
  // Null: none.
  const std::vector<float>* find(int layer, Side side, std::string_view format) const;
  // corrupt with file, layer and tensor for a scale that can't be used.
  Status check(const std::string& file) const;
};

struct ScaleRequest {
  std::vector<const ScaledFormat*> formats;
  ScaleMethod method;
};
// True where a format of the request stores rotated rows.
bool needs_rotated(const ScaleRequest& request);

// What was seen of a text: as it is, and turned for formats `_rot`, empty where none is asked for.
struct SeenRanges {
  std::span<const LayerRanges> plain, rotated;
  std::span<const LayerRanges> of(const ScaledFormat& format) const {
    return format.rotated ? rotated : plain;
  }
};

// Layers in which K or V is all zero, in a head or at all, get none: they are in `without`.
CacheScales fit_scales(const SeenRanges& seen, const ScaleRequest& request, ThreadPool& threads,
                       std::vector<int>& without);
// 1 for every layer that owns K and V.
CacheScales fixed_scales(std::span<const CacheLayer> layers, int num_query_heads,
                         const ScaleRequest& request);
// Fills `beyond` and `checked_tokens` from the ranges of a text.
void count_beyond(const SeenRanges& seen, CacheScales& scales);

void write_scales(const CacheScales& scales, SafetensorsWriter& writer,
                  std::vector<std::pair<std::string, std::string>>& metadata);
// corrupt with file and tensor where a tensor isn't what write_scales() writes; values are as they
// are.
Result<CacheScales> read_scales(const Safetensors& file);

}  // namespace kvant
