// PageWriter: puts a step's rows into exact pages, and seals the pages that the step completes.
//
// Sealing encodes exactly what is stored: rows are read back from the exact page, after their
// rounding. Both halves are loops over independent (page, head) pairs, so their result doesn't
// depend on the threads.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/bound_layers.h"
#include "attention/exact_page.h"
#include "attention/layer_pages.h"
#include "attention/read_rows.h"
#include "base/bytes.h"
#include "base/threads.h"
#include "cache/step.h"

namespace kvant {

// New rows of one layer: [rows of the step][heads][dim].
struct NewRows {
  const float* key;
  const float* value;     // not read where values are a range of the keys
  const float* pre_rope;  // only where the K format needs it
};

class PageWriter {
 public:
  // All outlive this.
  PageWriter(const BoundLayers& bound, LayerPages& pages, ThreadPool& threads);

  // Stores the rows; invalid_argument, naming sequence and position, if one isn't finite. Slots of
  // failed rows hold anything, as slots past a sequence's length do.
  Status store(const Step& step, int layer, const NewRows& rows);
  // Encodes the layer's pages that the step seals. REQUIRES store() of it, and seal() of the layers
  // before.
  void seal(const Step& step, int layer);

  uint64_t workspace_bytes() const;

 private:
  struct Task {
    const StepSequence* item;
    int64_t page;
  };
  // Float rows [64][dim] that one encode() reads.
  struct Scratch {
    AlignedArray<float> key, value, pre_rope, previous;
  };

  bool store_page(int layer, const Task& task, int head, const NewRows& rows);
  Status describe_bad_row(const Step& step, int layer, const NewRows& rows) const;
  void seal_page(const Step& step, int layer, const Task& task, int head, Scratch& scratch);
  void encode_side(const Step& step, int layer, const Task& task, int head, Side side,
                   const float* rows, Scratch& scratch, std::byte* to);
  void read_page(const Step& step, int layer, const Task& task, int head, Side side,
                 float* rows) const;

  const BoundLayers& bound_;
  LayerPages& pages_;
  ThreadPool& threads_;
  std::vector<Task> tasks_;
  std::vector<Scratch> scratch_;  // one per worker
};

}  // namespace kvant
