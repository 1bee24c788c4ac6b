// Tensors by name, wherever they come from: a GGUF file or safetensors. The common view that
// weights are loaded through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/gguf.h"
#include "files/safetensors.h"
#include "kvant/status.h"

namespace kvant {

struct StoredTensor {
  std::string where;  // "model.gguf: tensor 'blk.0.attn_q.weight'": how messages about it begin
  uint32_t type = 0;  // ggml_type
  std::vector<uint64_t> shape;      // row-major: the last one is contiguous
  std::span<const std::byte> data;  // lives as long as the source
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual bool has(std::string_view name) const = 0;
  // not_found or unsupported (a type that isn't a weight) with file and tensor.
  virtual Result<StoredTensor> find(std::string_view name) const = 0;
  // Of weights: scales of the cache aren't among them.
  virtual std::vector<std::string_view> names() const = 0;
  virtual void forget() const = 0;  // MappedFile::forget()
};

// Both keep what they were given alive.
std::unique_ptr<TensorSource> tensor_source(std::shared_ptr<const GgufFile> file);
std::unique_ptr<TensorSource> tensor_source(std::unique_ptr<Safetensors> files,
                                            std::string directory);

}  // namespace kvant
