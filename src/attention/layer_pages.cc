#include "attention/layer_pages.h"

#include <cassert>
#include <cstring>

namespace kvant {

LayerPages::LayerPages(const CacheOptions& options, const BoundLayers& bound, const SlabPool& pool,
                       int fill)
    : bound_(bound), pool_(pool), fill_(fill), slot_of_layer_(bound.layers.size(), 0) {
  size_t num_slots = 1;
  const auto keep = [&](int layer) {
    size_t& slot = slot_of_layer_[static_cast<size_t>(layer)];
    if (slot == 0) slot = num_slots++;
  };
  for (size_t i = 0; i < bound.layers.size(); ++i) {
    if (options.layers[i].shares >= 0) keep(options.layers[i].shares);
    if (bound.layers[i].key_needs.previous_layer || bound.layers[i].value_needs.previous_layer) {
      keep(static_cast<int>(i) - 1);
    }
  }
  workspaces_.resize(num_slots);
}

void LayerPages::begin_step(const Step& step) {
  for (size_t i = 0; i < bound_.layers.size(); ++i) {
    if (bound_.layers[i].group < 0) continue;
    const auto g = static_cast<size_t>(bound_.layers[i].group);
    Workspace& workspace = workspaces_[slot_of_layer_[i]];
    workspace.exact.reserve_discarding(static_cast<size_t>(step.num_exact_workspace(g)) *
                                       bound_.groups[g].exact_record_bytes());
    workspace.sealed.reserve_discarding(static_cast<size_t>(step.num_sealed_workspace(g)) *
                                        bound_.groups[g].sealed_record_bytes());
  }
  if (fill_ < 0) return;
  for (Workspace& workspace : workspaces_) {
    if (workspace.exact.size() > 0)
      std::memset(workspace.exact.data(), fill_, workspace.exact.size());
    if (workspace.sealed.size() > 0)
      std::memset(workspace.sealed.data(), fill_, workspace.sealed.size());
  }
}

std::byte* LayerPages::record(int layer, const PagePlace& place, bool sealed) {
  return const_cast<std::byte*>(std::as_const(*this).record(layer, place, sealed));
}

const std::byte* LayerPages::record(int layer, const PagePlace& place, bool sealed) const {
  assert(place.exists());
  const BoundLayer& bound = bound_.layers[static_cast<size_t>(layer)];
  const GroupLayout& layout = bound_.groups[static_cast<size_t>(bound.group)];
  const size_t record_bytes = sealed ? layout.sealed_record_bytes() : layout.exact_record_bytes();
  if (!place.slab.is_null()) {
    return pool_.data(place.slab) + static_cast<size_t>(bound.index_in_group) * record_bytes;
  }
  const Workspace& workspace = workspaces_[slot_of_layer_[static_cast<size_t>(layer)]];
  return (sealed ? workspace.sealed : workspace.exact).data() +
         static_cast<size_t>(place.workspace) * record_bytes;
}

uint64_t LayerPages::workspace_bytes() const {
  uint64_t bytes = 0;
  for (const Workspace& workspace : workspaces_)
    bytes += workspace.exact.size() + workspace.sealed.size();
  return bytes;
}

}  // namespace kvant
