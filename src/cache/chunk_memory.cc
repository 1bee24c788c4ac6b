#include "cache/chunk_memory.h"

#include <sys/mman.h>

#include <cstdint>

#include "base/bytes.h"
#include "base/huge_pages.h"

namespace kvant {
namespace {

// What a run of chunks finds free behind its first: address space, not memory.
constexpr size_t kRunBytes = size_t{1} << 30;

std::byte* map(void* where, size_t bytes, int flags) {
  void* p = mmap(where, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

// An address where a huge page may begin, with free address space behind it; nullptr: any.
std::byte* free_run() {
  void* p = mmap(nullptr, kRunBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  munmap(p, kRunBytes);
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<std::byte*>(p) + (round_up(address, kHugePageBytes) - address);
}

std::byte* last_huge_page_end(std::byte* p) {
  return p - reinterpret_cast<uintptr_t>(p) % kHugePageBytes;
}

}  // namespace

std::byte* ChunkMemory::take(size_t bytes) {
  if (moved_ < last_huge_page_end(end_)) {
    move_to_huge_pages(moved_, static_cast<size_t>(end_ - moved_));
    moved_ = last_huge_page_end(end_);
  }
  std::byte* chunk = end_ == nullptr ? nullptr : map(end_, bytes, 0);
  if (chunk == nullptr || chunk != end_) {  // a run of its own
    if (chunk != nullptr) give_back(chunk, bytes);
    chunk = map(free_run(), bytes, 0);
    if (chunk == nullptr) return nullptr;
    moved_ = chunk;
  }
  end_ = chunk + bytes;
  return chunk;
}

std::byte* ChunkMemory::take_populated(size_t bytes) {
  std::byte* const chunk = map(free_run(), bytes, MAP_POPULATE);
  if (chunk != nullptr) move_to_huge_pages(chunk, bytes);
  return chunk;
}

void ChunkMemory::give_back(std::byte* chunk, size_t bytes) { munmap(chunk, bytes); }

}  // namespace kvant
