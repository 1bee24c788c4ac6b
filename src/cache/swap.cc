#include "cache/swap.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace kvant {
namespace {

// A page of the sequence and the slab that takes it up.
struct Place {
  Handle* entry;  // of the page table
  uint32_t slab_class;
  Handle slab;
  bool is_filled;  // shared: it has the bytes already
};

std::vector<Place> list_places(const SwapContext& context, Sequence& sequence) {
  std::vector<Place> places;
  for (size_t g = 0; g < context.groups.size(); ++g) {
    const PageGroup& group = context.groups[g];
    GroupPages& held = sequence.groups[g];
    for (int64_t j = held.first_held; j < static_cast<int64_t>(held.pages.size()); ++j) {
      HeldPage& page = held.pages[static_cast<size_t>(j)];
      const bool sealed = reads_sealed(group.layout.rule, j, page_of(sequence.length));
      places.push_back({.entry = sealed ? &page.sealed : &page.exact,
                        .slab_class = sealed ? group.sealed_class : group.exact_class,
                        .slab = Handle(),
                        .is_filled = false});
    }
  }
  return places;
}

// Takes a reference to every page that the index still has.
void share_published(const SwapContext& context, Sequence& sequence, std::vector<Place>& places) {
  if (context.index == nullptr) return;
  std::vector<size_t> first(context.groups.size(), 0);  // place of each group's first held page
  for (size_t g = 1; g < first.size(); ++g) {
    const GroupPages& before = sequence.groups[g - 1];
    first[g] = first[g - 1] + before.pages.size() - static_cast<size_t>(before.first_held);
  }
  context.index->for_each_published(sequence, [&](int64_t page, size_t g, Handle handle) {
    const int64_t at = page - sequence.groups[g].first_held;
    if (at < 0) return;
    Place& place = places[first[g] + static_cast<size_t>(at)];
    context.pool.retain(handle);
    place.slab = handle;
    place.is_filled = true;
  });
}

Status take_slabs(const SwapContext& context, std::vector<Place>& places) {
  std::vector<size_t> counts;
  for (const Place& place : places) {
    if (place.is_filled) continue;
    counts.resize(std::max<size_t>(counts.size(), place.slab_class + 1));
    ++counts[place.slab_class];
  }
  KVANT_TRY(context.index != nullptr ? context.index->make_room(counts)
                                     : context.pool.check_room(counts));
  for (Place& place : places) {
    if (!place.is_filled) {
      KVANT_ASSIGN(place.slab, context.pool.allocate(place.slab_class));
    }
  }
  return Status();
}

}  // namespace

Status swap_out(const SwapContext& context, SequenceId id, const std::string& file) {
  Sequence& sequence = *context.table.find(id);
  if (sequence.swapped != nullptr)
    return invalid_argument("sequence " + std::to_string(id) + " is swapped out already");
  KVANT_ASSIGN(auto pages, SwappedPages::take(sequence, context.pool, context.identity, file));
  context.table.swap_out(sequence, std::move(pages));
  return Status();
}

Status swap_in(const SwapContext& context, SequenceId id) {
  Sequence& sequence = *context.table.find(id);
  if (sequence.swapped == nullptr)
    return invalid_argument("sequence " + std::to_string(id) + " isn't swapped out");
  std::vector<Place> places = list_places(context, sequence);
  share_published(context, sequence, places);
  Status status = take_slabs(context, places);
  if (status.ok()) status = sequence.swapped->load(sequence, context.identity);
  if (!status.ok()) {
    for (const Place& place : places) {
      if (!place.slab.is_null()) context.pool.release(place.slab);
    }
    sequence.swapped->unload();
    return status;
  }
  std::span<const std::byte> bytes = sequence.swapped->slabs();
  for (const Place& place : places) {
    const size_t size = context.pool.slab_bytes(place.slab_class);
    if (!place.is_filled) std::memcpy(context.pool.data(place.slab), bytes.data(), size);
    bytes = bytes.subspan(size);
    *place.entry = place.slab;
  }
  // Where the index lost the chain the sequence has pages of its own, and publishes them anew: what
  // others published since isn't what it holds, and its next page mustn't hang on that.
  if (context.index != nullptr && !context.index->has_published(sequence)) sequence.published = {};
  sequence.swapped.reset();
  return Status();
}

}  // namespace kvant
