// Seal benchmark: how fast rows get into a cache in every format, and what share of decoding that
// takes.
//
// A page is sealed once and read many times, so sealing has to stay out of the way, not to be the
// fastest: what counts is its share of a decode step's attention and append. Encoders are timed
// alone, too, one thread, in bytes of BF16 rows. What an encoder writes is decoded and compared
// before anything is timed. Formats that need calibration get stand-ins (stand_in.h).
#pragma once

#include <optional>
#include <string>

#include "base/threads.h"
#include "evaluate/attention_bench.h"
#include "kvant/format.h"
#include "kvant/status.h"

namespace kvant {

struct SealTiming {
  FormatPair pair;
  // Bytes of BF16 input per second and thread; nothing for a side that is never sealed.
  std::optional<double> key_rate, value_rate;
  double append_rate = 0;  // of K and V through KvCache, all threads, rounding and sealing included
  double append_ms = 0;    // of a decode step and layer, sealing spread over the steps
  double decode_share = 0;  // append_ms over append_ms and the attention beside it
  double spread = 0;  // of the encoders' times, the larger: (upper − lower quartile) / median
};

// What is wanted of formats whose elements are rounded one by one on a grid that is computed, not
// searched: others earn their quality by taking longer.
inline constexpr double kWantedSealRate = 2e9, kWantedSealShare = 0.03;
bool is_scalar(const FormatInfo& format);

// `shape` as for attention; one sequence, one query.
Result<SealTiming> bench_seal(const FormatPair& pair, const AttentionShape& shape, int repeats,
                              ThreadPool& threads);

}  // namespace kvant
