#include "cache/swapped_pages.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "base/hash.h"
#include "cache/sequence_table.h"
#include "cache/slab_pool.h"

namespace kvant {
namespace {

constexpr char kMagic[8] = {'k', 'v', 'a', 'n', 't', 's', 'w', 'p'};
constexpr uint32_t kVersion = 1;
constexpr size_t kIdentityDigits = 32;

struct ImageHeader {
  char magic[8];
  uint32_t version;
  uint32_t num_slabs;
  uint64_t image_bytes;  // this header's among them
  int64_t length;        // tokens
  char identity[kIdentityDigits];
  Hash128 checksum;  // of the whole image, in which it is 0
  char padding[48];  // slabs start on a cache line
};
static_assert(sizeof(ImageHeader) == SwappedPages::kHeaderBytes &&
              std::is_trivially_copyable_v<ImageHeader>);

template <typename Visit>
void for_each_slab(const Sequence& sequence, Visit visit) {
  for (const GroupPages& group : sequence.groups) {
    for (size_t j = static_cast<size_t>(group.first_held); j < group.pages.size(); ++j) {
      const HeldPage& page = group.pages[j];
      visit(page.sealed.is_null() ? page.exact : page.sealed);
    }
  }
}

void put_checksum(std::span<std::byte> image, const Hash128& sum) {
  std::memcpy(image.data() + offsetof(ImageHeader, checksum), &sum, sizeof sum);
}

std::string system_error() { return std::strerror(errno); }

}  // namespace

Result<std::unique_ptr<SwappedPages>> SwappedPages::take(const Sequence& sequence,
                                                         const SlabPool& pool,
                                                         std::string_view identity,
                                                         const std::string& file) {
  ImageHeader header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.length = sequence.length;
  header.image_bytes = sizeof header;
  identity.copy(header.identity, kIdentityDigits);
  for_each_slab(sequence, [&](Handle h) {
    ++header.num_slabs;
    header.image_bytes += pool.slab_bytes(h.slab_class());
  });

  std::unique_ptr<SwappedPages> out(new SwappedPages);
  out->image_ = AlignedArray<std::byte>(header.image_bytes);
  out->image_bytes_ = header.image_bytes;
  std::byte* at = out->image_.data();
  std::memcpy(at, &header, sizeof header);
  at += sizeof header;
  for_each_slab(sequence, [&](Handle h) {
    const size_t bytes = pool.slab_bytes(h.slab_class());
    std::memcpy(at, pool.data(h), bytes);
    at += bytes;
  });
  put_checksum(out->image_.span(), hash128(out->image_.span()));
  if (!file.empty()) {
    KVANT_TRY(out->write_file(file));
    out->image_ = {};
  }
  return out;
}

SwappedPages::~SwappedPages() {
  if (!file_.empty()) std::remove(file_.c_str());
}

// Only a file that this makes is this one's to remove: what is there already isn't touched.
Status SwappedPages::write_file(const std::string& path) {
  const auto failed = [&] { return io_error(path + " can't be written: " + system_error()); };
  std::FILE* const file = std::fopen(path.c_str(), "wbxe");
  if (file == nullptr) return failed();
  file_ = path;
  const bool written = std::fwrite(image_.data(), 1, image_bytes_, file) == image_bytes_;
  Status status = written ? Status() : failed();
  if (std::fclose(file) != 0 && status.ok()) status = failed();
  return status;
}

Status SwappedPages::read_file() {
  std::FILE* const file = std::fopen(file_.c_str(), "rbe");
  if (file == nullptr) return io_error(file_ + " can't be read: " + system_error());
  AlignedArray<std::byte> image(image_bytes_);
  const size_t bytes = std::fread(image.data(), 1, image_bytes_, file);
  const bool has_more = bytes == image_bytes_ && std::fgetc(file) != EOF;
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return io_error(file_ + " can't be read: " + system_error());
  if (bytes != image_bytes_ || has_more) {
    return corrupt(file_ + " has " + (has_more ? "more than " : "") + std::to_string(bytes) +
                   " bytes; wanted the " + std::to_string(image_bytes_) + " that were written");
  }
  image_ = std::move(image);
  return Status();
}

Status SwappedPages::load(const Sequence& sequence, std::string_view identity) {
  const bool from_file = image_.size() == 0;
  if (from_file) KVANT_TRY(read_file());
  ImageHeader header;
  std::memcpy(&header, image_.data(), sizeof header);
  const std::string_view seen(header.identity, kIdentityDigits);
  Status status;
  put_checksum(image_.span(), {});
  const Hash128 sum = hash128(image_.span());
  put_checksum(image_.span(), header.checksum);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.version != kVersion) {
    status = corrupt(name() + " doesn't begin as a swapped sequence of version " +
                     std::to_string(kVersion));
  } else if (!(sum == header.checksum)) {
    status = corrupt(name() + " is damaged: its bytes sum up to " + hex(sum) +
                     ", its checksum is " + hex(header.checksum));
  } else if (seen != identity) {
    status = corrupt(name() + " is of another cache: its identity is " + std::string(seen) +
                     "; wanted " + std::string(identity));
  } else if (header.length != sequence.length || header.image_bytes != image_bytes_) {
    status = corrupt(name() + " holds " + std::to_string(header.length) + " tokens in " +
                     std::to_string(header.image_bytes) + " bytes; wanted " +
                     std::to_string(sequence.length) + " in " + std::to_string(image_bytes_));
  }
  if (!status.ok() && from_file) image_ = {};
  return status;
}

void SwappedPages::unload() {
  if (!file_.empty()) image_ = {};
}

std::span<const std::byte> SwappedPages::slabs() const {
  return image_.span().subspan(sizeof(ImageHeader));
}

}  // namespace kvant
