#include "calibrate/channel_magnitudes.h"

#include <algorithm>
#include <numeric>

#include "base/float_types.h"

namespace kvant {

int ChannelMagnitudes::magnitude_code(float x) { return f32_to_bf16(x) & 0x7fff; }

void ChannelMagnitudes::add_outside(int code) {
  const int octave = code / kPerOctave;
  if (octave < kLeastOctave || (!counters_.empty() && octave < octave_)) {
    ++zeros_;
    return;
  }
  if (counters_.empty()) {
    counters_.assign(kCounters, 0);
    octave_ = octave - (kOctaves - 1);
  } else {
    raise(octave - (kOctaves - 1));
  }
  ++counters_[static_cast<size_t>(code - first_code())];
}

// Counters begin at a higher octave: those below it are zeros from now on.
void ChannelMagnitudes::raise(int octave) {
  const auto dropped = static_cast<size_t>(std::min(octave - octave_, kOctaves) * kPerOctave);
  const auto kept = counters_.begin() + static_cast<ptrdiff_t>(dropped);
  zeros_ = std::accumulate(counters_.begin(), kept, zeros_);
  std::fill(std::copy(kept, counters_.end(), counters_.begin()), counters_.end(), 0u);
  octave_ = octave;
}

std::vector<MagnitudeCount> ChannelMagnitudes::occurring() const {
  std::vector<MagnitudeCount> out;
  if (zeros_ > 0) out.push_back({0.0f, zeros_});
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (counters_[i] == 0) continue;
    const auto code = static_cast<uint16_t>(first_code() + static_cast<int>(i));
    out.push_back({bf16_to_f32(code), int64_t{counters_[i]}});
  }
  return out;
}

void ChannelMagnitudes::restore(int octave, int64_t zeros, std::span<const uint32_t> counters) {
  const bool is_empty =
      std::all_of(counters.begin(), counters.end(), [](uint32_t count) { return count == 0; });
  counters_.clear();
  if (!is_empty) counters_.assign(counters.begin(), counters.end());
  octave_ = octave;
  zeros_ = zeros;
}

}  // namespace kvant
