// SlabPool: the memory of all pages, in slabs of a few fixed sizes.
//
// A slab holds 64 tokens of one layer group, encoded or exact; the pool neither knows nor reads
// what is in it. Slabs of one size and purpose form a class. A class takes chunks of several slabs
// from the system and gives a chunk back as soon as it holds no live slab. Chunks grow with the
// class up to a bound, so that the bytes reserved stay within about 3 % of the bytes live once a
// class holds a few megabytes. Allocation and release take constant time.
//
// Slabs are counted references: allocate() returns one with count 1. Not thread-safe; data() alone
// may be called from many threads while nobody allocates or releases. One reference of a slab may
// be the prefix index's: where it is the only one the slab is *cached*, and as good as free to
// whoever asks how much room there is; the index gives it up when it is needed.
//
// Invariants (check_invariants):
//  1. A slot is either live (count ≥ 1, in a chunk), free (count 0, in its chunk's free list once)
//  or unbacked (count 0,
//     in the class's list of spare slots once).
//  2. A chunk's number of free slots is the length of its free list; a chunk is in the class's list
//  of open chunks if and
//     only if it has a free slot; without static mode no chunk is entirely free.
//  3. live, cached and reserved bytes are the sums over slots and chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/chunk_memory.h"
#include "cache/handle.h"
#include "kvant/status.h"

namespace kvant {

enum class SlabKind : uint8_t { kExact, kSealed };

struct PoolOptions {
  uint64_t max_live_bytes = 0;  // 0: no limit
  bool fixed =
      false;      // static mode: only preallocated slabs, never given back before the pool ends
  int fill = -1;  // tests: byte that fills every slab when it is allocated; -1: leave it as it was
};

class SlabPool {
 public:
  explicit SlabPool(PoolOptions options) : options_(options) {}
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // The new class's index. REQUIRES slab_bytes a positive multiple of 64, and fewer than
  // Handle::kMaxClasses classes.
  uint32_t add_class(size_t slab_bytes, SlabKind kind);
  // Takes `count` slabs of a class from the system now.
  Status preallocate(uint32_t slab_class, size_t count);

  // OK if counts[c] more slabs of every class c can be had once all cached ones are given up;
  // exhausted with the bytes needed and free otherwise. Linear in the number of classes, like the
  // next two.
  Status check_room(std::span<const size_t> counts) const;
  // Whether they can be had as things are.
  bool has_free(std::span<const size_t> counts) const;
  // Whether an empty pool has them.
  bool can_hold(std::span<const size_t> counts) const;
  bool is_limited() const { return options_.max_live_bytes != 0 || options_.fixed; }

  Result<Handle> allocate(uint32_t slab_class);
  void retain(Handle handle);
  // Drops one reference; the slab is free when none is left.
  void release(Handle handle);

  // The prefix index's reference. REQUIRES that it has none of this slab, or one.
  void retain_indexed(Handle handle);
  void release_indexed(Handle handle);
  bool is_indexed(Handle handle) const { return slot_of(handle).indexed; }

  // True if the handle names a live slab of its own generation.
  bool is_live(Handle handle) const;
  uint32_t references(Handle handle) const { return slot_of(handle).references; }
  std::byte* data(Handle handle) const { return slot_of(handle).data; }

  size_t slab_bytes(uint32_t slab_class) const { return classes_[slab_class].slab_bytes; }
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  uint64_t live_bytes() const {
    return live_bytes(SlabKind::kExact) + live_bytes(SlabKind::kSealed);
  }
  uint64_t live_bytes(SlabKind kind) const { return live_bytes_[static_cast<size_t>(kind)]; }
  size_t live_slabs() const { return live_slabs_; }
  uint64_t cached_bytes() const { return cached_bytes_; }  // part of live
  // That can be had, cached ones among them; meaningful where is_limited().
  uint64_t free_bytes() const;

  Status check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Slot {
    std::byte* data = nullptr;
    uint32_t references = 0;
    bool indexed = false;  // one of them is the prefix index's
    uint32_t generation = 1;
    uint32_t chunk = kNone;  // kNone: unbacked
    uint32_t next = kNone;   // of the chunk's free list, or of the class's list of unbacked slots
  };
  struct Chunk {
    std::byte* base = nullptr;  // nullptr: this entry is unused
    size_t bytes = 0;
    uint32_t num_slabs = 0;
    uint32_t num_free = 0;
    uint32_t first_free = kNone;
    uint32_t previous_open = kNone, next_open = kNone;
  };
  struct Class {
    size_t slab_bytes = 0;
    SlabKind kind = SlabKind::kExact;
    ChunkMemory memory;
    std::vector<Slot> slots;
    std::vector<Chunk> chunks;
    std::vector<uint32_t> unused_chunks;
    uint32_t first_unbacked = kNone;
    uint32_t first_open = kNone;
    size_t backed = 0;  // slots in chunks
    size_t live = 0;
    size_t cached = 0;  // of those live
  };

  // Keeps account of a slot whose references or index change by `change`.
  template <typename Change>
  void account(Handle handle, Change change);
  const Slot& slot_of(Handle h) const { return classes_[h.slab_class()].slots[h.slot()]; }
  Slot& slot_of(Handle h) { return classes_[h.slab_class()].slots[h.slot()]; }
  static size_t slabs_of_next_chunk(const Class& c);
  Status add_chunk(Class& c, size_t num_slabs);
  void remove_chunk(Class& c, uint32_t chunk);
  static void open_chunk(Class& c, uint32_t chunk);
  static void close_chunk(Class& c, uint32_t chunk);
  Status check_class(const Class& c, uint64_t& reserved) const;

  PoolOptions options_;
  std::vector<Class> classes_;
  uint64_t reserved_bytes_ = 0;
  uint64_t live_bytes_[2] = {0, 0};
  uint64_t cached_bytes_ = 0;
  size_t live_slabs_ = 0;
};

}  // namespace kvant
