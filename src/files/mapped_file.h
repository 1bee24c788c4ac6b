// A whole file mapped read-only: how weights and headers reach memory without a copy.
//
// The mapping lives as long as the object. Who maps a file trusts that nobody shortens it
// meanwhile; the content itself is trusted by nobody: readers on top check every offset against
// bytes().
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant {

class MappedFile {
 public:
  // not_found if there is no such file, io otherwise. A directory or another special file is
  // invalid_argument. An empty file gives empty bytes().
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

  // Gives back the memory of what was read so far; what is read again comes from the file.
  void forget() const;

 private:
  MappedFile(std::filesystem::path path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// `text` in single quotes for a message: bytes that aren't printable ASCII as \xNN, cut after 64
// characters. Names in files can hold anything.
std::string in_quotes(std::string_view text);

}  // namespace kvant
