// Planning: what a request asks of every format alike, its devices; one row is one format at one
// length on them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kvant/plan.h"

namespace kvant {

inline const std::string kBaselineFormat = "bf16";

// One format on every pipeline stage.
struct StagedPlanners {
  ResolvedFormats formats;            // of the whole model
  CachePlanner whole;                 // unsharded: one copy of the cache
  std::vector<CachePlanner> stages;   // of one tensor rank, on all its context ranks together
  std::vector<CachePlanner> devices;  // on the fullest of these
};

// True if a layer reads an encoder's or an image's tokens.
bool has_cross_attention(const ModelShape& shape);

class Planning {
 public:
  // Both outlive it.
  Planning(const ModelShape& shape, const PlanRequest& request)
      : shape_(shape), request_(request) {}

  Status shard();
  std::span<const ModelStage> stages() const { return stages_; }

  Result<StagedPlanners> bind(const std::string& format) const;
  Result<PlanRow> row(const std::string& format, const StagedPlanners& planners,
                      const SequenceSet& set) const;

  // Of one device of a stage: context ranks hold all weights, tensor ranks their share.
  uint64_t device_weights(size_t stage) const;
  // The pair that most layers with a cache have.
  FormatPair main_pair(std::span<const FormatPair> pairs) const;

 private:
  Result<PlanRow> row_of(const std::string& format, const StagedPlanners& planners,
                         const SequenceSet& set) const;
  Status add_stage(const StagedPlanners& planners, size_t stage, const SequenceSet& set,
                   PlanRow& row) const;
  Status set_capacity(const StagedPlanners& planners, const SequenceSet& set, PlanRow& row) const;
  uint64_t taken(size_t stage) const;

  const ModelShape& shape_;
  const PlanRequest& request_;
  std::vector<ModelStage> stages_;
};

}  // namespace kvant
