// A codec whose pages are what the float kernels read (page_kernels.h). Which bytes those are is
// the format's; asking and summing is the kernels'.
#pragma once

#include <string>

#include "formats/page_kernels.h"
#include "formats/plain_query_codec.h"

namespace kvant {

class FloatPageCodec : public PlainQueryCodec {
 public:
  void scores(const PageRead& page, const std::byte* prepared, int num_queries, int64_t,
              float* scores, size_t stride) const final {
    kernels_.float_key_scores(open(page), reinterpret_cast<const float*>(prepared), num_queries,
                              scores, stride);
  }
  void accumulate(const PageRead& page, const float* p, size_t stride_p, int num_queries,
                  float* acc, size_t stride_acc) const final {
    kernels_.float_value_accumulate(open(page), p, stride_p, num_queries, acc, stride_acc);
  }
  std::string kernel_name() const final {
    return name_ + "/" + std::string(isa_name(kernels_.isa));
  }

 protected:
  FloatPageCodec(std::string name, const CodecBinding& binding)
      : PlainQueryCodec(binding),
        side_(binding.side),
        name_(std::move(name)),
        kernels_(page_kernels(binding.isa)) {}

  virtual FloatPage view_of(const std::byte* page) const = 0;

  const Side side_;

 private:
  FloatPage open(const PageRead& page) const {
    FloatPage view = view_of(page.bytes);
    if (!page.next.empty()) view.next = page.next.data();
    return view;
  }

  const std::string name_;
  const PageKernels& kernels_;
};

}  // namespace kvant
