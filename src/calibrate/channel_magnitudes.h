// ChannelMagnitudes: how often every magnitude occurs in one channel, rounded to bfloat16, from the
// largest one down to some 2^-12 of it.
//
// A model has tens of thousands of channels, so that counters for all bfloat16s (magnitudes.h), 41
// KB, are too many for each. 12 octaves of 128 counters are kept, the largest magnitude's at the
// top; what is smaller counts as 0, in whatever order the numbers come, and so does what is below
// 2^-115. With 12 octaves below it a
// clip of at least 0.21 of the largest rounds all of that to 0 at up to 8 bits anyway.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibrate/magnitudes.h"

namespace kvant {

class ChannelMagnitudes {
 public:
  static constexpr int kOctaves = 12;
  static constexpr int kPerOctave = 128;
  static constexpr int kCounters = kOctaves * kPerOctave;
  static constexpr int kMostOctave = 255 - (kOctaves - 1);  // that a first counter has

  void add(float x) {
    const int code = magnitude_code(x);
    const int at = code - first_code();
    if (at >= 0 && at < kCounters && !counters_.empty()) {
      ++counters_[static_cast<size_t>(at)];
    } else {
      add_outside(code);
    }
  }

  // Those that occur, rising; zero among them.
  std::vector<MagnitudeCount> occurring() const;

  // 2^32 − 1 of one magnitude at most.
  std::span<const uint32_t> counters() const { return counters_; }  // none while all are 0
  int64_t zeros() const { return zeros_; }
  int octave() const { return octave_; }
  void restore(int octave, int64_t zeros, std::span<const uint32_t> counters);

 private:
  static constexpr int kLeastOctave = kOctaves;  // so that no first counter is one of 0

  static int magnitude_code(float x);
  int first_code() const { return octave_ * kPerOctave; }
  void add_outside(int code);
  void raise(int octave);

  std::vector<uint32_t> counters_;  // of the bfloat16s from octave_ on
  int64_t zeros_ = 0;               // and what is smaller than the first counter's
  int octave_ = 0;                  // exponent of the first counter, biased by 127
};

}  // namespace kvant
