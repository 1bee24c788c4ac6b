// Safetensors: the tensors of one file, or of a Hugging Face directory with its shards, mapped
// read-only. Knows no model.
//
// Header, offsets, shapes and types are checked before use: `corrupt` names the file and the
// tensor. Immutable after open(); any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "files/mapped_file.h"
#include "kvant/status.h"

namespace kvant {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;                // "F32", "BF16", "F16", … as in the file
  std::vector<uint64_t> shape;      // row-major: the last one is contiguous
  std::span<const std::byte> data;  // in the mapping
  size_t file = 0;                  // which shard
};

class Safetensors {
 public:
  // One file.
  static Result<std::unique_ptr<Safetensors>> open_file(const std::filesystem::path& path);
  // model.safetensors.index.json and the shards that it names, or else model.safetensors.
  static Result<std::unique_ptr<Safetensors>> open_directory(
      const std::filesystem::path& directory);

  // In the order of the files and of the data in them.
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  const SafetensorsTensor* tensor(std::string_view name) const;  // nullptr: not there
  // Of `__metadata__` in the first file that has the key; nullptr: not there.
  const std::string* metadata(const std::string& key) const;
  const std::filesystem::path& path_of(const SafetensorsTensor& tensor) const {
    return files_[tensor.file].path();
  }
  void forget() const {  // MappedFile::forget()
    for (const MappedFile& file : files_) file.forget();
  }

 private:
  Status add_file(const std::filesystem::path& path);
  Status add_shards(const std::filesystem::path& index);
  Status build_index();

  std::vector<MappedFile> files_;
  std::vector<SafetensorsTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::unordered_map<std::string, std::string> metadata_;
};

}  // namespace kvant
