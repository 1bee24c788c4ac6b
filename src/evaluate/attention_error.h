// Attention error: how far attention on a format's pages is from attention on exact rows, layer by
// layer, on a model's own keys, values and queries.
//
// A trace takes the rows of every layer from one run on a BF16 cache, and the queries of its last
// page. Each layer then gets a cache of its own in the format asked for, the same rows and the same
// queries: errors of one layer don't reach the next, so layers can be told apart. This is what
// finds the few layers that a format ruins (keys with a huge bias, case B11), where a mean over the
// model says only that something is wrong.
#pragma once

#include <span>
#include <vector>

#include "base/threads.h"
#include "kvant/cache.h"
#include "model/model.h"

namespace kvant {

struct AttentionTrace {
  struct Layer {
    CacheLayer shape;  // as the model's cache has it, reading its own pages
    AttentionParams params;
    std::vector<float> k;    // [tokens][KV heads][key_dim], zeros before the window's first page
    std::vector<float> v;    // [tokens][KV heads][value_dim]
    std::vector<float> q;    // [queries][query heads][key_dim]
    std::vector<float> out;  // [queries][query heads][value_dim], of the BF16 cache
  };
  int64_t tokens = 0;         // a multiple of 64
  std::vector<Layer> layers;  // num_query_heads = 0 where a layer has no cache

  static constexpr int64_t kQueries = kPageTokens;  // the last page
};

// Runs the whole pages of `tokens`, at least two. `chunk` as EvaluationOptions has it.
Result<AttentionTrace> trace_attention(Model& model, ThreadPool& threads,
                                       std::span<const int32_t> tokens, int chunk);

// Both relative, as roots of sums of squares. Scores are compared without their mean over a query's
// tokens, which softmax doesn't see.
struct AttentionError {
  double scores = 0;
  double outputs = 0;
};

struct AttentionErrors {
  std::vector<AttentionError> layers;              // zeros where a layer has no cache
  std::vector<std::vector<AttentionError>> heads;  // [layer][KV head]
  AttentionError all;                              // root mean square over the layers with a cache
};

// Of the formats, sinks and exact window of `cache`, whose layers are the traced model's.
Result<AttentionErrors> attention_errors(const AttentionTrace& trace, const CacheOptions& cache,
                                         ThreadPool& threads);

// The layers that a format ruins: their output error is above kRuined, or above kNoticed and
// kOutlier times the median layer's. In rising order.
inline constexpr double kRuined = 0.5, kNoticed = 0.05, kOutlier = 3;
std::vector<int> sensitive_layers(const AttentionErrors& errors);

}  // namespace kvant
