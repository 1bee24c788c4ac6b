// LayerPages: the bytes of one layer of a page, wherever they are.
//
// A page's place (cache/step.h) is a slab of the pool or a workspace page of the running step.
// Workspace pages exist for one layer at a time, because a step goes through the layers in order;
// only layers that a later one looks back at (it shares them, or its codec wants the previous
// layer's page) have workspace of their own.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "attention/bound_layers.h"
#include "base/bytes.h"
#include "cache/slab_pool.h"
#include "cache/step.h"

namespace kvant {

class LayerPages {
 public:
  // All outlive this. `fill`: as in PoolOptions.
  LayerPages(const CacheOptions& options, const BoundLayers& bound, const SlabPool& pool, int fill);

  // Makes room for the workspace pages of a step.
  void begin_step(const Step& step);

  // REQUIRES `layer` to own pages, and place.exists().
  std::byte* record(int layer, const PagePlace& place, bool sealed);
  const std::byte* record(int layer, const PagePlace& place, bool sealed) const;

  // Layers whose workspace pages stay until the step's end; the others' are lost with the next
  // layer's append.
  bool keeps_workspace(int layer) const { return slot_of_layer_[static_cast<size_t>(layer)] != 0; }

  uint64_t workspace_bytes() const;

 private:
  struct Workspace {
    AlignedArray<std::byte> exact, sealed;
  };

  const BoundLayers& bound_;
  const SlabPool& pool_;
  const int fill_;
  std::vector<size_t> slot_of_layer_;  // 0: the one that layers take in turn
  std::vector<Workspace> workspaces_;
};

}  // namespace kvant
