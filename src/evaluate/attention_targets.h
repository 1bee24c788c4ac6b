// Attention's targets: how fast attention on each format has to be, as a table of data, and whether
// a measurement reached it.
//
// A run is a shape to time; a target holds formats of the runs of one kind to a number: a share of
// the memory's bandwidth, or a speed as a multiple of another row's. Adding either is a row in
// attention_targets.cc. What wasn't measured (a format that can't serve the shape, a peer that
// isn't there) is neither reached nor missed.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluate/attention_bench.h"
#include "simd/cpu.h"

namespace kvant {

enum class RunKind : uint8_t { kDecode, kBatch, kPrefill };

struct TargetRun {
  std::string_view name;  // "decode/32x8x128": query heads, KV heads, channels
  RunKind kind;
  AttentionShape shape;
  int repeats;
};
std::span<const TargetRun> target_runs();

enum class TargetMeasure : uint8_t {
  kShare,      // of the bandwidth that the same threads read with
  kSpeed,      // times that of the slowest of `against`
  kSameShare,  // bandwidth share, times that of the same format in the run `against`
  kThreads,    // speed of all threads, times that of one; or kFullShare where memory is the limit
};
inline constexpr double kFullShare = 0.75;

// On which instruction sets a target holds: peers leave more room on some.
enum class TargetIsa : uint8_t { kAny, kBest, kAvx2 };

struct AttentionTarget {
  std::string_view what;
  RunKind kind;
  std::string_view formats;  // by comma, as for --kv; each is held to it. "*": the slowest of all
                             // that the run has but the floats
  TargetMeasure measure;
  std::string_view against;  // rows by comma, or a run
  double wanted;
  int threads = 0;  // 0: every number of them
  TargetIsa isa = TargetIsa::kAny;
};
std::span<const AttentionTarget> attention_targets();

// What a run gave.
struct TargetReport {
  const TargetRun* run = nullptr;
  AttentionReport report;
};

struct TargetVerdict {
  const AttentionTarget* target = nullptr;
  std::string run, format;
  int threads = 0;
  std::optional<double> measured = {};  // as `wanted`
  bool reached = false;
  AttentionTiming row = {};  // of the format
};

// Every target that holds on `isa`, over all reports, run by run.
std::vector<TargetVerdict> judge_targets(std::span<const TargetReport> reports, Isa isa);

// The formats and peers that the targets of a run look at. Formats that can't serve its heads are
// left out and named in `notes`.
AttentionRequest target_request(const TargetRun& run, Isa isa, std::string& notes);

// The runs whose names begin with an item of `only`, all if it is empty, and what they are compared
// with. invalid_argument names an item that no run begins with.
Result<std::vector<const TargetRun*>> choose_runs(std::span<const std::string> only);

}  // namespace kvant
