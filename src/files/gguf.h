// GGUF reader: metadata and tensor table of one file, mapped read-only. Knows no model.
//
// Every length, offset and type in the file is checked before use, so a truncated, bit-flipped or
// hostile file gives `corrupt` with the file, the field and the value; nothing is allocated on a
// number that the file merely claims. Immutable after open(); any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant {

struct GgufTensor {
  std::string_view name;
  uint32_t type = 0;                // ggml_type
  std::vector<uint64_t> dims;       // ggml order: dims[0] is the contiguous one
  std::span<const std::byte> data;  // in the mapping
};

class GgufFile {
 public:
  static Result<std::unique_ptr<GgufFile>> open(const std::filesystem::path& path);
  virtual ~GgufFile() = default;

  virtual const std::filesystem::path& path() const = 0;
  virtual uint32_t version() const = 0;

  // Metadata by key; nothing if absent or of another type (integers of any width and sign are
  // converted when they fit, floats likewise). Strings point into the mapping.
  virtual std::optional<std::string_view> string(std::string_view key) const = 0;
  virtual std::optional<int64_t> integer(std::string_view key) const = 0;
  virtual std::optional<double> number(std::string_view key) const = 0;
  virtual std::optional<bool> boolean(std::string_view key) const = 0;
  virtual std::optional<std::vector<std::string_view>> strings(std::string_view key) const = 0;
  virtual std::optional<std::vector<int64_t>> integers(std::string_view key) const = 0;
  virtual std::optional<std::vector<double>> numbers(std::string_view key) const = 0;
  virtual std::vector<std::string_view> keys() const = 0;

  virtual std::span<const GgufTensor> tensors() const = 0;
  virtual const GgufTensor* tensor(std::string_view name) const = 0;  // nullptr: not there

  virtual void forget() const = 0;  // MappedFile::forget()
};

}  // namespace kvant
