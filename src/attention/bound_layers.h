// BoundLayers: a cache's layers with their codecs bound and their page sizes known.
//
// This is where options meet formats: everything that can be wrong with them is found here, before
// a page exists. The planner and the cache both start from it, so that they can't disagree about a
// byte.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "attention/page_pass.h"
#include "cache/group_layout.h"
#include "formats/codec.h"
#include "kvant/cache.h"
#include "simd/cpu.h"

namespace kvant {

// Where formats come from: the registry, or a test's own.
struct FormatSource {
  std::function<Result<const FormatInfo*>(std::string_view name)> find;
  std::function<Result<std::unique_ptr<Codec>>(const FormatInfo& format,
                                               const CodecBinding& binding)>
      bind;
};

struct BoundLayer {
  int owner =
      -1;  // the layer whose pages this one reads: itself, the one that it shares, or −1: none
  int group = -1;  // of the pages; −1 unless it owns some
  int index_in_group = 0;
  LayerFormat format;  // without codecs where another layer owns the pages
  FormatNeeds key_needs, value_needs;
  double key_bits = 0, value_bits = 0;  // per element of a page as it is stored at length
};

struct BoundLayers {
  std::vector<BoundLayer> layers;
  std::vector<GroupLayout> groups;
};

// The formats of the registry.
const FormatSource& registered_formats();

// The group that `num_layers` layers like `layer` make, with the sizes of its pages, from one head
// that is bound for it.
Result<GroupLayout> layout_group(const CacheLayer& layer, int num_layers, int sinks,
                                 int exact_window, const FormatSource& formats);

// `options` outlives the result, whose codecs point to its RoPE tables.
Result<BoundLayers> bind_layers(const CacheOptions& options, const FormatSource& formats, Isa isa);

}  // namespace kvant
