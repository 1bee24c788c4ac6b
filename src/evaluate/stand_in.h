// Stand-ins for what calibration gives, where only speed matters: scales and transforms of the
// right shape that mean nothing, for rows of standard normal values.
#pragma once

#include <vector>

#include "formats/codec.h"
#include "kvant/cache.h"

namespace kvant {

// A given scale in which the values fit; 0 where the format takes none.
float stand_in_scale(const FormatInfo& format);

// The artifact of one head, empty where the format needs none. Channels of tc<B> get unlike bits,
// as calibration gives them, so that pages have several sections.
std::vector<float> stand_in_tensor(const FormatInfo& format, int dim);

// The layer with stand-ins for whatever its two formats, which are registered, need.
CacheLayer stand_in_layer(CacheLayer layer);

}  // namespace kvant
