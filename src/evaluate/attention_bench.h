// Attention benchmark: time of attention on a cache in every format, against the memory's speed and
// against ggml.
//
// Every subject gets the same random K, V and queries. Each answer is checked before anything is
// timed: ours against a double-precision attention over the rows that the cache says it stands for,
// ggml's against the original rows. Then all subjects are timed in turns, every number of threads
// beside the others, with the memory's read bandwidth measured in the same rounds, because shared
// machines change their speed from minute to minute. Timed is attention alone: a step's new rows
// are already in the cache. Formats that need calibration get stand-ins (stand_in.h).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "kvant/format.h"
#include "kvant/status.h"

namespace kvant {

struct AttentionShape {
  int heads = 0, kv_heads = 0, dim = 0;
  std::vector<int> tokens;  // in the cache before the step, of each sequence of the batch
  int queries = 1;          // tokens of the step, of each sequence
  int layers = 1;           // that take turns
  int sinks = 64;
  int exact_window = 0;
  uint64_t rotation_seed = 0;
};

struct AttentionRequest {
  AttentionShape shape;
  std::vector<FormatPair> pairs;
  std::vector<std::string> peers;  // cache types of ggml's; left out of a batch
  int repeats = 0;
};

struct AttentionTiming {
  std::string name;
  int threads = 0;
  double ms = 0;               // median of one layer's attention
  double spread = 0;           // (upper − lower quartile) / median
  double bytes = 0;            // of the K and V that one layer's attention reads
  double bandwidth_share = 0;  // bytes / time over the bandwidth measured beside it
  double error = 0;  // relative, of the answer against exact attention on the original rows
};

struct AttentionBandwidth {
  int threads = 0;
  double bytes_per_second = 0;  // median
};

struct AttentionReport {
  // Of every number of threads: the pairs in the order asked for, then the peers that could run.
  std::vector<AttentionTiming> rows;
  std::vector<AttentionBandwidth> bandwidths;
  std::string notes;  // what was left out and why, "" if nothing
};

// The inputs of all subjects: K and V [longest sequence + 2·queries][kv_heads][dim], of which every
// sequence has the first rows, and queries [sequences·queries][heads][dim].
struct AttentionData {
  explicit AttentionData(const AttentionShape& shape);
  AttentionShape shape;
  std::vector<float> k, v, q;
  size_t num_sequences() const { return shape.tokens.size(); }
  // Tokens that the last query of a sequence sees.
  int64_t end(size_t sequence) const { return shape.tokens[sequence] + shape.queries; }
  // Attention of query row `row` over the first `count` tokens, in double. [heads][dim]
  std::vector<double> attend(const float* keys, const float* values, int row, int64_t count) const;
};

// ‖answer − exact‖ / ‖exact‖
double relative_error(std::span<const float> answer, std::span<const double> exact);

class AttentionSubject {
 public:
  virtual ~AttentionSubject() = default;
  virtual std::string name() const = 0;
  // Computes one answer and compares it; returns its error against exact attention, or internal if
  // it is wrong.
  virtual Result<double> check() = 0;
  // The mean time of one layer's attention, in seconds, over all layers in turn.
  virtual Result<double> time_once() = 0;
  virtual double bytes() const = 0;
};

// The cache types of ggml that are worth a comparison.
std::span<const std::string_view> all_peers();

// Times every pair and peer with each of `pools`.
Result<AttentionReport> bench_attention(const AttentionRequest& request,
                                        std::span<ThreadPool* const> pools,
                                        const std::function<void(double)>& progress);

// ggml's flash attention on one cache type ("f16", "q8_0"). unsupported where the type doesn't fit
// the head size, or for a batch.
Result<std::unique_ptr<AttentionSubject>> ggml_attention(const std::string& type,
                                                         const AttentionData& data, int threads);

}  // namespace kvant
