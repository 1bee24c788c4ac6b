// Resuming: the sums of a calibration that was interrupted, in a file, to the bit.
#pragma once

#include <filesystem>
#include <string>

#include "calibrate/cache_scales.h"
#include "calibrate/key_statistics.h"
#include "calibrate/range_statistics.h"
#include "kvant/status.h"

namespace kvant {

inline constexpr std::string_view kStateName = "kvant-calibrate.state";

// What is gathered; each may be null.
struct Statistics {
  KeyStatistics* keys = nullptr;
  RangeStatistics* ranges = nullptr;
  RangeStatistics* rotated = nullptr;  // of rotated rows
};

// REQUIRES ranges.
SeenRanges seen_by(const Statistics& statistics);

struct CalibrationState {
  std::string identity;   // of everything that the sums depend on
  int64_t documents = 0;  // that were read
  int64_t tokens = 0;     // of those that counted
  int64_t too_short = 0;  // documents that say nothing to a transform
  int64_t skipped = 0;    // documents that the model's tokenizer or template can't read
};

// The statistics stay as they are.
Status save_state(const std::filesystem::path& path, const CalibrationState& state,
                  const Statistics& statistics);

// Fills the statistics, which have the model's shape. not_found where there is no file,
// invalid_argument where it is of another calibration, corrupt where it isn't whole, or holds NaN
// or a negative count.
Result<CalibrationState> load_state(const std::filesystem::path& path, const std::string& identity,
                                    const Statistics& statistics);

}  // namespace kvant
