// SealingProbe: a KvCache that measures while it serves what sealing does to attention.
//
// Of one in N pages that a step seals, the step's last query of that sequence is computed on the
// page alone, from its exact rows and from what its codes stand for: scores, and softmax(scores)·V.
// That is a page's own error, on the traffic that is there; what kernels round in queries and
// weights isn't in it (docs/numerics.md). Nothing that the cache answers changes.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "attention/forwarding_cache.h"
#include "evaluate/attention_error.h"

namespace kvant {

struct SealingError {
  int layer = 0;
  AttentionError error;  // over the layer's heads
  double seconds = 0;    // that measuring took
};

class SealingProbe final : public ForwardingCache {
 public:
  // `inner` outlives this. `every`: N, at least 1; the first page is measured. `report` is called
  // in attend(), once per layer and measured page.
  SealingProbe(KvCache& inner, int64_t every, std::function<void(const SealingError&)> report)
      : ForwardingCache(inner), every_(every), report_(std::move(report)) {}

  Status begin_step(std::span<const StepItem> batch) override;
  Status attend(int layer, const float* q, const AttentionParams& params, float* out,
                PageMass* mass) override;

 private:
  struct Page {
    SequenceId sequence;
    int64_t number;
    int64_t row;       // of the query, in the step's rows
    int64_t position;  // of the query
  };
  Status measure(const Page& page, int layer, const float* q, const AttentionParams& params,
                 AttentionError& error);

  const int64_t every_;
  const std::function<void(const SealingError&)> report_;
  int64_t num_sealed_ = 0;
  std::vector<Page> pages_;  // of the running step
  std::vector<float> exact_key_, exact_value_, key_, value_;
};

}  // namespace kvant
