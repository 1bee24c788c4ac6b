// CalibrationRun: reading text through the model for statistics, with a progress bar, and from
// where Ctrl-C ended it.
#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
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

struct ReadRequest {
  const CalibrationText& text;
  Statistics statistics;
  std::string label;                   // of the progress bar
  std::span<const size_t> order = {};  // of documents; empty: as they are
  // After each document; ends the reading where it isn't OK.
  std::function<Status(const CalibrationState& state)> after = {};
};

// Keeps the state of a run on disk while it goes, so that not only Ctrl-C can be resumed from:
// every half minute, and less often where writing takes more than a fiftieth of the time.
class StateKeeper {
 public:
  // `statistics` outlive it.
  StateKeeper(std::filesystem::path path, const Statistics& statistics)
      : path_(std::move(path)), statistics_(statistics) {}

  Status keep_now_and_then(const CalibrationState& state);

 private:
  using Clock = std::chrono::steady_clock;

  std::filesystem::path path_;
  Statistics statistics_;
  Clock::time_point last_ = Clock::now();
  Clock::duration wait_ = kFirstWait;
  static constexpr auto kFirstWait = std::chrono::seconds(1);
  static constexpr auto kWait = std::chrono::seconds(30);
  static constexpr int kShare = 50;
};

// Reads documents from number `state.documents` on and counts them in `state`. cancelled after
// Ctrl-C, between two documents; errors name the document.
Status read_documents(const Invocation& in, const OpenModel& open, const ReadRequest& request,
                      CalibrationState& state);

}  // namespace kvant::cli
