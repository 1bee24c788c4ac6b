#include "cli/calibration_run.h"

#include <fmt/format.h>

#include <chrono>

#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace kvant::cli {
namespace {

std::string human_seconds(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 90 * 60) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

// Speed and time left, once there is something to go by.
class Pace {
 public:
  std::string text(int64_t tokens, double share) const {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
    if (tokens == 0 || share <= 0) return {};
    return fmt::format(", {:.0f} tok/s, {} left", static_cast<double>(tokens) / spent.count(),
                       human_seconds(spent.count() * (1 - share) / share));
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Status read_one(const Invocation& in, const OpenModel& open, const ReadRequest& request,
                size_t index, CalibrationState& state) {
  const Result<std::vector<int32_t>> read = request.text.tokens(index, *open.model);
  if (!read.ok()) {
    if (!in.settings.skip_bad) return read.status();
    ++state.skipped;
    return {};
  }
  const std::vector<int32_t>& tokens = *read;
  std::vector<RowObserver*> observers;
  const bool is_short = tokens.size() < kLeastKeyTokens;
  for (RangeStatistics* ranges : {request.statistics.ranges, request.statistics.rotated}) {
    if (ranges != nullptr && !tokens.empty()) observers.push_back(ranges);
  }
  if (request.statistics.keys != nullptr && !is_short) observers.push_back(request.statistics.keys);
  if (request.statistics.keys != nullptr && is_short) ++state.too_short;
  if (observers.empty()) return {};
  state.tokens += static_cast<int64_t>(tokens.size());
  return observe(*open.model, *open.threads, tokens, static_cast<int>(in.settings.chunk), observers)
      .with_context(request.text.place(index));
}

}  // namespace

Status StateKeeper::keep_now_and_then(const CalibrationState& state) {
  const Clock::time_point now = Clock::now();
  if (now - last_ < wait_) return {};
  KVANT_TRY(save_state(path_, state, statistics_));
  last_ = Clock::now();
  wait_ = std::max<Clock::duration>(kWait, kShare * (last_ - now));
  return {};
}

Status read_documents(const Invocation& in, const OpenModel& open, const ReadRequest& request,
                      CalibrationState& state) {
  const auto count = static_cast<int64_t>(request.text.size());
  Progress progress(fmt::format("{} on {}", request.label, counted(count, "document")));
  const InterruptScope scope;
  const Pace pace;
  const int64_t first = state.documents, tokens_before = state.tokens;
  while (state.documents < count) {
    if (InterruptScope::interrupted()) {
      return cancelled(fmt::format("interrupted after {} of {} documents", state.documents, count));
    }
    const auto number = static_cast<size_t>(state.documents);
    KVANT_TRY(
        read_one(in, open, request, request.order.empty() ? number : request.order[number], state));
    ++state.documents;
    if (request.after) KVANT_TRY(request.after(state));
    const double done = static_cast<double>(state.documents) / static_cast<double>(count);
    const double share =
        static_cast<double>(state.documents - first) / static_cast<double>(count - first);
    progress.update(done, pace.text(state.tokens - tokens_before, share));
  }
  return {};
}

}  // namespace kvant::cli
