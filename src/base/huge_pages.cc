#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

#include "base/bytes.h"

namespace kvant {
namespace {

constexpr int kCollapse = 25;  // MADV_COLLAPSE of Linux 6.1, which Debian 12's headers don't know

void advise_whole_pages(void* p, size_t bytes, int advice) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  const size_t begin = round_up(address, kHugePageBytes) - address;
  if (begin + kHugePageBytes > bytes) return;
  const size_t length = (bytes - begin) / kHugePageBytes * kHugePageBytes;
  // Whatever it answers, the memory is there.
  static_cast<void>(madvise(static_cast<std::byte*>(p) + begin, length, advice));
}

}  // namespace

void prefer_huge_pages(void* p, size_t bytes) { advise_whole_pages(p, bytes, MADV_HUGEPAGE); }

void move_to_huge_pages(void* p, size_t bytes) { advise_whole_pages(p, bytes, kCollapse); }

}  // namespace kvant
