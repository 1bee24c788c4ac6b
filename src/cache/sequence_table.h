// SequenceTable: which pages every sequence holds, and how sequences start, branch, shrink and end.
//
// Per layer group a sequence has a page table indexed by page number, so that a page keeps its
// original position for ever; entries of pages that a window has dropped are null. A page is held
// exact or sealed, never both, between steps. Sealed pages and complete exact pages are shared
// between sequences by reference count; an open page is shared too until somebody writes to it
// (Step copies it then). Growth is the business of Step; this class never looks into a slab.
// While a sequence is swapped out its tables keep their lengths and paths, and no handle.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "cache/group_layout.h"
#include "cache/slab_pool.h"
#include "cache/swapped_pages.h"
#include "kvant/cache.h"
#include "kvant/status.h"

namespace kvant {

// How the dense layers computed a page's rows: as one full block of 64 by the many-row path, or row
// by row.
enum class PagePath : uint8_t { kRow, kBlock };

struct HeldPage {
  Handle sealed;
  Handle exact;
  PagePath path = PagePath::kRow;
};

struct GroupPages {
  std::vector<HeldPage> pages;  // num_pages(length) entries
  int64_t first_held = 0;       // entries before are null
};

// What the prefix index knows of a sequence (cache/prefix_index.h).
struct PublishedChain {
  int64_t pages = 0;  // published so far; 0: what follows means nothing
  Hash128 last;       // key of the last one's node
  Hash128 root;       // of its salt
};

struct Sequence {
  int64_t length = 0;  // tokens
  std::vector<GroupPages> groups;
  PublishedChain published;
  std::unique_ptr<SwappedPages> swapped;  // where its pages are while it is swapped out
};

// A layer group with its slab classes.
struct PageGroup {
  GroupLayout layout;
  uint32_t exact_class = 0;
  uint32_t sealed_class = 0;  // meaningful where layout.rule.seals
};

class SequenceTable {
 public:
  // Both outlive the table.
  SequenceTable(SlabPool& pool, std::span<const PageGroup> groups) : pool_(pool), groups_(groups) {}
  ~SequenceTable();
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  SequenceId create();
  Status release(SequenceId id);
  // nullptr if there is none. The pointer stays valid until the sequence is released.
  Sequence* find(SequenceId id);
  const Sequence* find(SequenceId id) const;

  Result<KvCache::Fork> fork(SequenceId id, int64_t tokens);
  Result<Rollback> truncate(SequenceId id, int64_t tokens);

  // The largest cut ≤ `tokens` from which the sequence can go on and see what a fresh one would:
  // every page that the next query sees is held in the state that the read rule asks for.
  int64_t largest_cut(const Sequence& sequence, int64_t tokens) const;

  // Gives up the pages of a sequence whose bytes are elsewhere now.
  void swap_out(Sequence& sequence, std::unique_ptr<SwappedPages> pages);

  // Adds 1 to references[handle.bits()] for every reference that a sequence holds.
  void count_references(std::unordered_map<uint64_t, uint32_t>& references) const;
  // Page tables: lengths, states by the read rule, live handles.
  Status check_invariants() const;

  const std::unordered_map<SequenceId, Sequence>& sequences() const { return sequences_; }

 private:
  bool can_continue_from(const Sequence& sequence, int64_t tokens) const;
  void release_pages(const Sequence& sequence);

  SlabPool& pool_;
  std::span<const PageGroup> groups_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 1;
};

}  // namespace kvant
