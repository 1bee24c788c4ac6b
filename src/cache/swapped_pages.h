// SwappedPages: the pages of one sequence, outside the pool.
//
// One image holds all of them: a header with the cache's identity, the sequence's length and a
// checksum over everything, then the slabs as they are, codes, scales and exact rows alike, group
// by group and page by page (docs/format-spec.md). It stays in memory or is the content of a file,
// which goes with the object. It isn't compressed: docs/architecture.md says what that would give.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "kvant/status.h"

namespace kvant {

class SlabPool;
struct Sequence;

class SwappedPages {
 public:
  // Copies a sequence's pages; into `file`, a new one, if that isn't empty. io with the file's name
  // where it can't be written: it is gone then. REQUIRES that the sequence isn't swapped out.
  static Result<std::unique_ptr<SwappedPages>> take(const Sequence& sequence, const SlabPool& pool,
                                                    std::string_view identity,
                                                    const std::string& file);
  ~SwappedPages();  // removes the file
  SwappedPages(const SwappedPages&) = delete;
  SwappedPages& operator=(const SwappedPages&) = delete;

  // Reads a file in and checks the image: corrupt if it isn't what was written, with the name of
  // the file and what differs. May be called again.
  Status load(const Sequence& sequence, std::string_view identity);
  // Lets go of what load() read from a file; the file stays.
  void unload();
  // Bytes of the slabs, one behind the other. REQUIRES load().
  std::span<const std::byte> slabs() const;

  // Of an image, before its slabs.
  static constexpr size_t kHeaderBytes = 128;
  uint64_t memory_bytes() const { return image_.size(); }

 private:
  SwappedPages() = default;

  Status write_file(const std::string& path);
  Status read_file();
  std::string name() const { return file_.empty() ? "a swapped sequence" : file_; }

  AlignedArray<std::byte> image_;  // empty while it is in the file
  size_t image_bytes_ = 0;
  std::string file_;
};

}  // namespace kvant
