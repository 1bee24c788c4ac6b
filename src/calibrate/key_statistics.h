// KeyStatistics: second moments of a model's keys and queries, as its attention meets them.
//
// Gathered while the model reads calibration text through a BF16 cache: of every layer and KV head
// the mean of w·q·qᵀ over the heads of the group, and the covariance of K within pages, each page's
// own mean removed. w is what an error of the query's scores on sealed pages does to its output:
// softmax passes it on times the attention paid there, and errors of different tokens are
// independent, so w is the sum of the squared attention masses of those pages. Rows are those that
// the cache would store (after RoPE, rounded to BF16); the first page of a sequence, which stays
// exact in every format, and pages that aren't full don't count. Sums are in double and in the
// order of the text, so that neither threads nor chunks of whole pages change a bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "calibrate/observe.h"
#include "model/model.h"

namespace kvant {

// The shortest text that says something: one query behind a page other than the first.
inline constexpr int kLeastKeyTokens = 2 * kPageTokens + 1;

// Of one KV head; D = its key width.
struct HeadMoments {
  std::vector<double> query;  // [D][D]: Σ w·q·qᵀ
  std::vector<double> key;    // [D][D]: Σ (k − page mean)·(k − page mean)ᵀ
  int64_t num_queries = 0;
  int64_t num_keys = 0;
};

struct LayerMoments {
  int dim = 0;                     // 0: a layer without keys of its own
  std::vector<HeadMoments> heads;  // per KV head
};

class KeyStatistics final : public RowObserver {
 public:
  // `threads` outlives this.
  KeyStatistics(const ModelInfo& info, ThreadPool& threads);

  void see_keys(const ObservedRows& rows) override;
  void see_values(const ObservedRows&) override {}
  void see_queries(const ObservedRows& rows) override;
  // Reads one document, alone.
  Status add(Model& model, std::span<const int32_t> tokens, int chunk);

  std::span<const LayerMoments> layers() const { return layers_; }
  std::span<LayerMoments> layers() { return layers_; }  // to go on from sums that were kept

 private:
  ThreadPool& threads_;
  std::vector<LayerMoments> layers_;
};

}  // namespace kvant
