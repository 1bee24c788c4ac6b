#include "cache/slab_pool.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <string>

#include "base/bytes.h"

namespace kvant {
namespace {

// A chunk is 1/32 of what its class already holds: the last, partly filled chunk then costs at most
// 3 %. The lower bound keeps small slabs from taking a system call each, the upper ones keep one
// live slab from holding much free memory.
constexpr size_t kGrowthDivisor = 32;
constexpr size_t kMinChunkBytes = 64 << 10;
constexpr size_t kMaxChunkBytes = 2 << 20;
constexpr size_t kMaxChunkSlabs = 16;

// Beyond any machine's memory, and far enough from 2^64 for rounding up.
constexpr uint64_t kMaxPreallocatedBytes = uint64_t{1} << 47;

size_t system_page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

SlabPool::~SlabPool() {
  for (Class& c : classes_) {
    for (Chunk& chunk : c.chunks) {
      if (chunk.base != nullptr) ChunkMemory::give_back(chunk.base, chunk.bytes);
    }
  }
}

uint32_t SlabPool::add_class(size_t slab_bytes, SlabKind kind) {
  assert(slab_bytes > 0 && slab_bytes % kAlignment == 0 && classes_.size() < Handle::kMaxClasses);
  Class c;
  c.slab_bytes = slab_bytes;
  c.kind = kind;
  classes_.push_back(std::move(c));
  return static_cast<uint32_t>(classes_.size() - 1);
}

Status SlabPool::preallocate(uint32_t slab_class, size_t count) {
  Class& c = classes_[slab_class];
  const std::optional<uint64_t> bytes = checked_mul(count, c.slab_bytes);
  if (count > Handle::kMaxSlots - c.backed || !bytes || *bytes > kMaxPreallocatedBytes) {
    return exhausted("preallocating " + std::to_string(count) + " page slabs of " +
                     std::to_string(c.slab_bytes) + " bytes is more than a pool serves");
  }
  return count == 0 ? Status() : add_chunk(c, count);
}

Status SlabPool::check_room(std::span<const size_t> counts) const {
  uint64_t needed = 0;
  for (size_t i = 0; i < counts.size(); ++i) needed += counts[i] * classes_[i].slab_bytes;
  if (options_.max_live_bytes != 0) {
    const uint64_t used = live_bytes() - cached_bytes_;
    const uint64_t free = options_.max_live_bytes - std::min(options_.max_live_bytes, used);
    if (needed > free) {
      return exhausted("pages of " + std::to_string(needed) + " bytes are needed and " +
                       std::to_string(free) + " of " + std::to_string(options_.max_live_bytes) +
                       " are free");
    }
  }
  for (size_t i = 0; options_.fixed && i < counts.size(); ++i) {
    const size_t free = classes_[i].backed - classes_[i].live + classes_[i].cached;
    if (counts[i] > free) {
      return exhausted(std::to_string(counts[i] * classes_[i].slab_bytes) + " bytes of " +
                       (classes_[i].kind == SlabKind::kExact ? "exact" : "sealed") +
                       " pages are needed and " + std::to_string(free * classes_[i].slab_bytes) +
                       " of the preallocated ones are free");
    }
  }
  return Status();
}

bool SlabPool::has_free(std::span<const size_t> counts) const {
  uint64_t needed = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    needed += counts[i] * classes_[i].slab_bytes;
    if (options_.fixed && counts[i] > classes_[i].backed - classes_[i].live) return false;
  }
  return options_.max_live_bytes == 0 || live_bytes() + needed <= options_.max_live_bytes;
}

bool SlabPool::can_hold(std::span<const size_t> counts) const {
  uint64_t needed = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const std::optional<uint64_t> bytes = checked_mul(counts[i], classes_[i].slab_bytes);
    const std::optional<uint64_t> sum = bytes ? checked_add(needed, *bytes) : std::nullopt;
    if (!sum || (options_.fixed && counts[i] > classes_[i].backed)) return false;
    needed = *sum;
  }
  return options_.max_live_bytes == 0 || needed <= options_.max_live_bytes;
}

uint64_t SlabPool::free_bytes() const {
  if (options_.max_live_bytes != 0) {
    const uint64_t used = live_bytes() - cached_bytes_;
    return options_.max_live_bytes - std::min(options_.max_live_bytes, used);
  }
  uint64_t free = 0;
  for (const Class& c : classes_) free += (c.backed - c.live + c.cached) * c.slab_bytes;
  return free;
}

size_t SlabPool::slabs_of_next_chunk(const Class& c) {
  const size_t bytes =
      std::clamp(c.backed * c.slab_bytes / kGrowthDivisor, kMinChunkBytes, kMaxChunkBytes);
  return std::clamp<size_t>(bytes / c.slab_bytes, 1, kMaxChunkSlabs);
}

Status SlabPool::add_chunk(Class& c, size_t num_slabs) {
  const size_t bytes = round_up(num_slabs * c.slab_bytes, system_page_bytes());
  std::byte* const base = options_.fixed ? c.memory.take_populated(bytes) : c.memory.take(bytes);
  if (base == nullptr) {
    return exhausted("the system gave no " + std::to_string(bytes) +
                     " bytes for pages; the pool holds " + std::to_string(reserved_bytes_));
  }
  uint32_t index;
  if (c.unused_chunks.empty()) {
    index = static_cast<uint32_t>(c.chunks.size());
    c.chunks.emplace_back();
  } else {
    index = c.unused_chunks.back();
    c.unused_chunks.pop_back();
  }
  Chunk& chunk = c.chunks[index];
  chunk = Chunk{.base = base, .bytes = bytes};
  chunk.num_slabs = chunk.num_free = static_cast<uint32_t>(num_slabs);
  for (size_t i = num_slabs; i-- > 0;) {
    uint32_t slot = c.first_unbacked;
    if (slot == kNone) {
      slot = static_cast<uint32_t>(c.slots.size());
      c.slots.emplace_back();
    } else {
      c.first_unbacked = c.slots[slot].next;
    }
    c.slots[slot].data = chunk.base + i * c.slab_bytes;
    c.slots[slot].chunk = index;
    c.slots[slot].next = chunk.first_free;
    chunk.first_free = slot;
  }
  c.backed += num_slabs;
  reserved_bytes_ += bytes;
  open_chunk(c, index);
  return Status();
}

void SlabPool::remove_chunk(Class& c, uint32_t index) {
  Chunk& chunk = c.chunks[index];
  close_chunk(c, index);
  ChunkMemory::give_back(chunk.base, chunk.bytes);
  reserved_bytes_ -= chunk.bytes;
  c.backed -= chunk.num_slabs;
  for (uint32_t slot = chunk.first_free; slot != kNone;) {
    Slot& s = c.slots[slot];
    const uint32_t next = s.next;
    s.data = nullptr;
    s.chunk = kNone;
    s.next = c.first_unbacked;
    c.first_unbacked = slot;
    slot = next;
  }
  chunk = Chunk();
  c.unused_chunks.push_back(index);
}

void SlabPool::open_chunk(Class& c, uint32_t index) {
  c.chunks[index].previous_open = kNone;
  c.chunks[index].next_open = c.first_open;
  if (c.first_open != kNone) c.chunks[c.first_open].previous_open = index;
  c.first_open = index;
}

void SlabPool::close_chunk(Class& c, uint32_t index) {
  const Chunk& chunk = c.chunks[index];
  if (chunk.previous_open == kNone) {
    c.first_open = chunk.next_open;
  } else {
    c.chunks[chunk.previous_open].next_open = chunk.next_open;
  }
  if (chunk.next_open != kNone) c.chunks[chunk.next_open].previous_open = chunk.previous_open;
}

Result<Handle> SlabPool::allocate(uint32_t slab_class) {
  Class& c = classes_[slab_class];
  if (options_.max_live_bytes != 0 && live_bytes() + c.slab_bytes > options_.max_live_bytes) {
    return exhausted("a page slab of " + std::to_string(c.slab_bytes) + " bytes is needed and " +
                     std::to_string(live_bytes()) + " of " +
                     std::to_string(options_.max_live_bytes) + " bytes are in use");
  }
  if (c.first_open == kNone) {
    if (options_.fixed) {
      return exhausted("all " + std::to_string(c.backed) + " preallocated page slabs of " +
                       std::to_string(c.slab_bytes) + " bytes are in use");
    }
    const size_t num_slabs = slabs_of_next_chunk(c);
    if (c.backed + num_slabs > Handle::kMaxSlots) return exhausted("a slab class has no slot left");
    KVANT_TRY(add_chunk(c, num_slabs));
  }
  Chunk& chunk = c.chunks[c.first_open];
  const uint32_t index = chunk.first_free;
  Slot& slot = c.slots[index];
  chunk.first_free = slot.next;
  slot.next = kNone;
  slot.references = 1;
  if (--chunk.num_free == 0) close_chunk(c, slot.chunk);
  ++c.live;
  ++live_slabs_;
  live_bytes_[static_cast<size_t>(c.kind)] += c.slab_bytes;
  if (options_.fill >= 0) std::memset(slot.data, options_.fill, c.slab_bytes);
  return Handle(0, slab_class, index, slot.generation);
}

template <typename Change>
void SlabPool::account(Handle handle, Change change) {
  Class& c = classes_[handle.slab_class()];
  Slot& slot = c.slots[handle.slot()];
  const bool before = slot.indexed && slot.references == 1;
  change(slot);
  const bool after = slot.indexed && slot.references == 1;
  if (after && !before) ++c.cached, cached_bytes_ += c.slab_bytes;
  if (before && !after) --c.cached, cached_bytes_ -= c.slab_bytes;
}

void SlabPool::retain(Handle handle) {
  assert(is_live(handle));
  account(handle, [](Slot& slot) { ++slot.references; });
}

void SlabPool::retain_indexed(Handle handle) {
  assert(is_live(handle) && !is_indexed(handle));
  account(handle, [](Slot& slot) {
    ++slot.references;
    slot.indexed = true;
  });
}

void SlabPool::release_indexed(Handle handle) {
  assert(is_live(handle) && is_indexed(handle));
  account(handle, [](Slot& slot) { slot.indexed = false; });
  release(handle);
}

void SlabPool::release(Handle handle) {
  assert(is_live(handle));
  account(handle, [](Slot& s) { --s.references; });
  Class& c = classes_[handle.slab_class()];
  Slot& slot = c.slots[handle.slot()];
  if (slot.references > 0) return;
  slot.generation = slot.generation == Handle::kMaxGeneration ? 1 : slot.generation + 1;
  --c.live;
  --live_slabs_;
  live_bytes_[static_cast<size_t>(c.kind)] -= c.slab_bytes;
  const uint32_t index = slot.chunk;
  Chunk& chunk = c.chunks[index];
  slot.next = chunk.first_free;
  chunk.first_free = handle.slot();
  if (chunk.num_free++ == 0) open_chunk(c, index);
  if (chunk.num_free == chunk.num_slabs && !options_.fixed) remove_chunk(c, index);
}

bool SlabPool::is_live(Handle handle) const {
  if (handle.is_null() || handle.tier() != 0 || handle.slab_class() >= classes_.size())
    return false;
  const Class& c = classes_[handle.slab_class()];
  return handle.slot() < c.slots.size() && c.slots[handle.slot()].references > 0 &&
         c.slots[handle.slot()].generation == handle.generation();
}

Status SlabPool::check_class(const Class& c, uint64_t& reserved) const {
  size_t backed = 0, free = 0, unbacked = 0, live = 0, cached = 0;
  for (size_t i = 0; i < c.chunks.size(); ++i) {
    const Chunk& chunk = c.chunks[i];
    if (chunk.base == nullptr) continue;
    reserved += chunk.bytes;
    backed += chunk.num_slabs;
    free += chunk.num_free;
    size_t length = 0;
    for (uint32_t slot = chunk.first_free; slot != kNone; slot = c.slots[slot].next) {
      if (c.slots[slot].references != 0 || c.slots[slot].chunk != i || ++length > chunk.num_slabs) {
        return internal_error("pool: a chunk's free list holds a slot that isn't free there");
      }
    }
    if (length != chunk.num_free)
      return internal_error("pool: a chunk's count of free slots is wrong");
    if (!options_.fixed && chunk.num_free == chunk.num_slabs)
      return internal_error("pool: an empty chunk is kept");
  }
  for (const Slot& slot : c.slots) {
    live += slot.references > 0 ? 1 : 0;
    cached += slot.indexed && slot.references == 1 ? 1 : 0;
    if (slot.indexed && slot.references == 0) return internal_error("pool: a free slab is indexed");
  }
  for (uint32_t slot = c.first_unbacked; slot != kNone; slot = c.slots[slot].next) {
    if (c.slots[slot].chunk != kNone || ++unbacked > c.slots.size()) {
      return internal_error("pool: the list of unbacked slots is broken");
    }
  }
  if (backed != c.backed || live != c.live || cached != c.cached || live + free != backed ||
      backed + unbacked != c.slots.size()) {
    return internal_error("pool: slots of a class don't add up");
  }
  size_t open = 0;
  for (uint32_t i = c.first_open; i != kNone; i = c.chunks[i].next_open) {
    if (c.chunks[i].num_free == 0 || ++open > c.chunks.size())
      return internal_error("pool: open chunks are broken");
  }
  const auto with_room = std::count_if(c.chunks.begin(), c.chunks.end(),
                                       [](const Chunk& x) { return x.num_free > 0; });
  if (open != static_cast<size_t>(with_room))
    return internal_error("pool: a chunk with room isn't in the open list");
  return Status();
}

Status SlabPool::check_invariants() const {
  uint64_t reserved = 0, cached = 0, live[2] = {0, 0};
  for (const Class& c : classes_) {
    KVANT_TRY(check_class(c, reserved));
    cached += c.cached * c.slab_bytes;
    live[static_cast<size_t>(c.kind)] += c.live * c.slab_bytes;
  }
  if (reserved != reserved_bytes_) return internal_error("pool: reserved bytes don't add up");
  if (live[0] != live_bytes_[0] || live[1] != live_bytes_[1] || cached != cached_bytes_)
    return internal_error("pool: live bytes don't add up");
  return Status();
}

}  // namespace kvant
