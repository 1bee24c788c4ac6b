// The three things that kvant bench times, and what they share.
#pragma once

#include <vector>

#include "cli/command.h"
#include "cli/output.h"
#include "evaluate/attention_bench.h"

namespace kvant::cli {

Status bench_attention_command(const Invocation& in);
Status bench_targets_command(const Invocation& in);
Status bench_seal_command(const Invocation& in);

// Heads, channels, lengths and rounds as the options have them. invalid_argument where they don't
// fit together.
Result<AttentionShape> bench_shape(const Settings& settings);

// The formats of --kv, each of which can serve heads of --dim channels.
Result<std::vector<FormatPair>> bench_pairs(const Settings& settings);

// The members of a row that every benchmark of attention prints.
Json timing_json(const AttentionTiming& row);

}  // namespace kvant::cli
