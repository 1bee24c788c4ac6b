// The short way to a new format: a codec that only says how to decode one token's row.
//
// Scores and weighted sums then work on one decoded row at a time, in a buffer that stays in the
// first-level cache; no page is ever expanded as a whole. That is right for every format and as
// fast as its decode_row(); a user who takes such a format is told that it is slow. A format that
// earns it gets kernels of its own later (page_kernels.h) and derives from Codec instead.
#pragma once

#include "formats/plain_query_codec.h"

namespace kvant {

class RowCodec : public PlainQueryCodec {
 public:
  RowCodec(std::string name, const CodecBinding& binding);

  void decode(const std::byte* page, float* rows) const final;
  void scores(const PageRead& page, const std::byte* prepared, int num_queries,
              int64_t first_position, float* scores, size_t stride) const final;
  void accumulate(const PageRead& page, const float* p, size_t stride_p, int num_queries,
                  float* acc, size_t stride_acc) const final;
  std::string kernel_name() const final { return name_ + "/rows"; }
  bool has_kernel() const final { return false; }

 protected:
  // The row of one token, row[dim()].
  virtual void decode_row(const std::byte* page, size_t token, float* row) const = 0;

 private:
  std::string name_;
};

}  // namespace kvant
