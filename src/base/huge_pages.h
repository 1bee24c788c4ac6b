// Memory on huge pages. A cache is read from end to end for every token, so a page of 4 KiB is one
// look-up of its address for each 64 lines, and inside a virtual machine a look-up that misses
// costs as much as fetching those lines. Both functions ask; where the system has no huge pages,
// nothing changes.
#pragma once

#include <cstddef>

namespace kvant {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Asks for huge pages where [p, p + bytes), which nobody has written to yet, holds whole ones.
void prefer_huge_pages(void* p, size_t bytes);

// Moves what [p, p + bytes) holds to huge pages, where it holds whole ones; takes the time of
// copying it. Others may read and write it meanwhile.
void move_to_huge_pages(void* p, size_t bytes);

}  // namespace kvant
