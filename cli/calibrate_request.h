// CalibrateRequest: what the options of kvant calibrate ask for, once they go together.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "calibrate/cache_scales.h"
#include "calibrate/transform_fit.h"
#include "engine/settings.h"

namespace kvant::cli {

// A format that a transform can be learned for. tc<B>: the widths that its sections may have,
// chosen by measured quality (docs/numerics.md). bal<B>: all channels have its bits.
struct Target {
  std::string_view format;
  BitOptions options;
  bool balanced = false;
};

// What --for asks for.
struct Targets {
  std::vector<const Target*> transforms;
  ScaleRequest scales;
};

enum class Source : uint8_t { kDataset, kRandom, kFixed };

struct CalibrateRequest {
  Targets targets;
  Source source = Source::kDataset;
};

// invalid_argument, in one sentence, for names that aren't known and options that don't go
// together.
Result<CalibrateRequest> calibrate_request(const Settings& settings);

}  // namespace kvant::cli
