// A codec whose pages are what the integer kernels read (page_kernels.h): codes first, then what
// they are scaled by. Which bytes those are is the format's; asking and summing is the kernels'.
#pragma once

#include <algorithm>
#include <string>

#include "base/bytes.h"
#include "formats/codec.h"
#include "formats/page_kernels.h"

namespace kvant {

class IntPageCodec : public Codec {
 public:
  size_t query_bytes(int num_queries) const final {
    return kernels_.int_query_bytes(num_queries, shape());
  }
  void prepare_query(const float* queries, int num_queries, std::byte* prepared) const final {
    kernels_.int_prepare_query(queries, num_queries, shape(), prepared);
  }
  void scores(const PageRead& page, const std::byte* prepared, int num_queries, int64_t,
              float* scores, size_t stride) const final {
    kernels_.int_key_scores(open(page), prepared, num_queries, scores, stride);
  }
  void accumulate(const PageRead& page, const float* p, size_t stride_p, int num_queries,
                  float* acc, size_t stride_acc) const final {
    kernels_.int_value_accumulate(open(page), p, stride_p, num_queries, acc, stride_acc);
  }
  std::string kernel_name() const final {
    return name_ + "/" + std::string(isa_name(kernels_.isa));
  }

 protected:
  // `num_groups`: of channels that share scales, where `layout` is kToken; else 1.
  IntPageCodec(std::string name, const CodecBinding& binding, int bits, ScaleLayout layout,
               size_t num_groups)
      : side_(binding.side),
        dim_(static_cast<size_t>(binding.dim)),
        bits_(bits),
        layout_(layout),
        num_groups_(num_groups),
        code_bytes_(side_ == Side::kKey ? key_code_bytes(bits, binding.dim)
                                        : value_code_bytes(bits, binding.dim)),
        name_(std::move(name)),
        kernels_(page_kernels(binding.isa)) {}

  virtual IntPage view_of(const std::byte* page) const = 0;

  // Codes of all rows, [T][D], into the page's first code_bytes_, and out of them.
  void pack(const uint8_t* codes, std::byte* page) const {
    (side_ == Side::kKey ? pack_key_codes : pack_value_codes)(codes, bits_, static_cast<int>(dim_),
                                                              reinterpret_cast<uint8_t*>(page));
  }
  void unpack(const std::byte* page, uint8_t* codes) const {
    (side_ == Side::kKey ? unpack_key_codes : unpack_value_codes)(
        reinterpret_cast<const uint8_t*>(page), bits_, static_cast<int>(dim_), codes);
  }

  const Side side_;
  const size_t dim_;
  const int bits_;
  const ScaleLayout layout_;
  const size_t num_groups_;
  const size_t code_bytes_;

 private:
  IntShape shape() const {
    return {bits_, static_cast<int>(dim_), static_cast<int>(num_groups_), layout_};
  }
  IntPage open(const PageRead& page) const {
    IntPage view = view_of(page.bytes);
    if (page.next.empty()) return view;
    // The kernel asks for the bytes of the codes' place; those of the metadata's are few.
    view.next = reinterpret_cast<const uint8_t*>(page.next.data());
    const size_t end = std::min(page_bytes(), page.next.size());
    if (code_bytes_ < end) prefetch(page.next.subspan(code_bytes_, end - code_bytes_));
    return view;
  }

  const std::string name_;
  const PageKernels& kernels_;
};

}  // namespace kvant
