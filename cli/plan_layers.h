// What kvant plan says of single layers.
#pragma once

#include <string>

#include "cli/plan_report.h"

namespace kvant::cli {

// What a layer is, in one word: its first stream's kind, "shared", "state" or "none".
std::string layer_kind(const ModelLayer& layer);
// All that it keeps: "sliding + compressed + state".
std::string layer_parts(const ModelLayer& layer);
// Of one layer, in the report's first format: the shares of its groups.
double layer_bytes_per_token(const PlanReport& report, int layer);

}  // namespace kvant::cli
