// SafetensorsWriter: the bytes of a safetensors file, tensor by tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvant/status.h"

namespace kvant {

class SafetensorsWriter {
 public:
  // `dtype` as the format spells it ("F32", "I64", "U8"); `bytes` are little-endian, row-major and
  // of the shape's size. Names differ.
  void add(std::string name, std::string_view dtype, std::vector<uint64_t> shape,
           std::span<const std::byte> bytes);
  template <typename T>
  void add(std::string name, std::string_view dtype, std::vector<uint64_t> shape,
           const std::vector<T>& values) {
    add(std::move(name), dtype, std::move(shape), std::as_bytes(std::span(values)));
  }

  // The whole file; `metadata` are its `__metadata__`, in that order.
  std::string finish(std::span<const std::pair<std::string, std::string>> metadata) const;

 private:
  struct Entry {
    std::string name, dtype;
    std::vector<uint64_t> shape;
    size_t begin = 0, end = 0;
  };
  std::vector<Entry> entries_;
  std::string data_;
};

}  // namespace kvant
