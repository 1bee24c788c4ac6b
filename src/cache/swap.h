// Swapping: a sequence's pages leave the pool, and come back.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cache/prefix_index.h"
#include "cache/sequence_table.h"
#include "cache/slab_pool.h"

namespace kvant {

// What both need; all of it outlives the call.
struct SwapContext {
  SlabPool& pool;
  SequenceTable& table;
  std::span<const PageGroup> groups;
  PrefixIndex* index;  // null: there is none
  std::string_view identity;
};

// As KvCache's, of a sequence that exists. A page that the prefix index still has isn't copied
// back, but shared again.
Status swap_out(const SwapContext& context, SequenceId id, const std::string& file);
Status swap_in(const SwapContext& context, SequenceId id);

}  // namespace kvant
