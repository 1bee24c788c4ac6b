// kvant calibrate --stability: how far scales still move with the number of documents.
#pragma once

#include "calibrate/cache_scales.h"
#include "cli/command.h"

namespace kvant::cli {

// Prints a table; writes no calibration. Without formats of given scales, those of fp8_e4m3_head
// and int8_head.
Status run_stability(const Invocation& in, ScaleRequest request);

}  // namespace kvant::cli
