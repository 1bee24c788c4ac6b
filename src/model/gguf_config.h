// The part of a GGUF file's metadata that families share, read into a DecoderSpec. Every message
// names file and key.
#pragma once

#include <string>
#include <string_view>

#include "files/gguf.h"
#include "model/decoder_spec.h"

namespace kvant {

// Keys of one architecture: "llama.block_count" is key("block_count").
class GgufKeys {
 public:
  GgufKeys(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  const GgufFile& file() const { return file_; }
  std::string key(std::string_view name) const { return architecture_ + "." + std::string(name); }
  std::string where(std::string_view name) const {
    return file_.path().string() + ": " + key(name);
  }

  // An integer in [min, max]; `fallback` if absent (fallback < min: required). corrupt for another
  // type.
  Result<int> integer(std::string_view name, int min, int max, int fallback = -1) const;
  Result<double> number(std::string_view name, double fallback) const;
  // One per layer: written as a list, or one value for all.
  Result<std::vector<int>> per_layer(std::string_view name, int min, int max, int num_layers,
                                     int fallback = -1) const;

 private:
  const GgufFile& file_;
  std::string architecture_;
};

// As read_hf_common: everything but rope.
Status read_gguf_common(const GgufKeys& keys, DecoderSpec& spec);

// attention.sliding_window as a number of tokens; 0 if it is absent, 0 or −1.
Result<int> read_gguf_window(const GgufKeys& keys);

// rope.freq_base (or `base` if it is absent), rope.dimension_count (else the key width),
// rope.scaling.*, and the frequency factors that files carry as tensors. `pairing` is how the
// architecture's converter left the rows.
Result<Rope> read_gguf_rope(const GgufKeys& keys, DecoderSpec& spec, RopePairing pairing,
                            double base = 10000);

}  // namespace kvant
