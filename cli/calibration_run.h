// CalibrationRun: reading text through the model for statistics, with a progress bar, and from
// where Ctrl-C ended it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "calibrate/key_statistics.h"
#include "calibrate/range_statistics.h"
#include "calibrate/resume.h"
#include "cli/calibration_text.h"
#include "cli/command.h"
#include "cli/open_model.h"

namespace kvant::cli {

// What is gathered; either may be null.
struct Statistics {
  KeyStatistics* keys = nullptr;
  RangeStatistics* ranges = nullptr;
};

struct ReadRequest {
  const CalibrationText& text;
  Statistics statistics;
  std::string label;                   // of the progress bar
  std::span<const size_t> order = {};  // of documents; empty: as they are
  // After each document; ends the reading where it isn't OK.
  std::function<Status(const CalibrationState& state)> after = {};
};

// Reads documents from number `state.documents` on and counts them in `state`. cancelled after
// Ctrl-C, between two documents; errors name the document.
Status read_documents(const Invocation& in, const OpenModel& open, const ReadRequest& request,
                      CalibrationState& state);

}  // namespace kvant::cli
