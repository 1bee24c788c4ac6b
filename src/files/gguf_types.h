// Sizes of the tensor types that a GGUF file can name, so that the reader can check a tensor's
// extent by itself. Numbers: the GGUF specification and ggml.h 0.15.3 (a test compares the table
// with the library).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvant {

struct GgufType {
  uint32_t id;            // ggml_type
  std::string_view name;  // "Q4_1"
  uint32_t block;         // elements that are stored together
  uint32_t block_bytes;
};

std::span<const GgufType> gguf_types();
// nullptr: no such type.
const GgufType* find_gguf_type(uint32_t id);

}  // namespace kvant
