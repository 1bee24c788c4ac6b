// A codec that asks with the queries as they come: their prepared form is a copy.
#pragma once

#include <cstring>

#include "base/bytes.h"
#include "formats/codec.h"

namespace kvant {

class PlainQueryCodec : public Codec {
 public:
  size_t query_bytes(int num_queries) const final {
    return round_up(bytes_of(num_queries), kAlignment);
  }
  void prepare_query(const float* queries, int num_queries, std::byte* prepared) const final {
    std::memcpy(prepared, queries, bytes_of(num_queries));
  }

 protected:
  explicit PlainQueryCodec(const CodecBinding& binding) : dim_(static_cast<size_t>(binding.dim)) {}

  size_t dim() const { return dim_; }

 private:
  size_t bytes_of(int num_queries) const {
    return static_cast<size_t>(num_queries) * dim_ * sizeof(float);
  }

  size_t dim_;
};

}  // namespace kvant
