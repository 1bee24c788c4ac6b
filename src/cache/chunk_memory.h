// ChunkMemory: where the chunks of a slab class lie. One behind the other, as far as the system
// lets them, so that those that are full can move to huge pages together; single chunks are smaller
// than one. The memory of a process grows by whole chunks all the same: nothing moves before it is
// used.
#pragma once

#include <cstddef>

namespace kvant {

class ChunkMemory {
 public:
  // The next chunk, of whole pages of the system; nullptr where it has none. REQUIRES that what was
  // taken before is in use: it moves to huge pages now.
  std::byte* take(size_t bytes);
  // A chunk whose memory is there at once, and on huge pages.
  std::byte* take_populated(size_t bytes);
  // Chunks are given back one by one, in any order.
  static void give_back(std::byte* chunk, size_t bytes);

 private:
  std::byte* moved_ = nullptr;  // up to here all is on huge pages, as far as it can be
  std::byte* end_ = nullptr;    // of the last chunk
};

}  // namespace kvant
