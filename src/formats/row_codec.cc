#include "formats/row_codec.h"

#include <array>
#include <utility>

#include "base/bytes.h"

namespace kvant {
namespace {

constexpr size_t kLanes = 16;  // a width is a multiple of it

// Sums run in 16 lanes by channel, then pairwise: the same bits on every machine.
float dot(const float* a, const float* b, size_t n) {
  std::array<float, kLanes> sum{};
  for (size_t i = 0; i < n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) sum[l] += a[i + l] * b[i + l];
  }
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) sum[l] += sum[l + width];
  }
  return sum[0];
}

}  // namespace

RowCodec::RowCodec(std::string name, const CodecBinding& binding)
    : PlainQueryCodec(binding), name_(std::move(name)) {}

void RowCodec::decode(const std::byte* page, float* rows) const {
  for (size_t t = 0; t < kPageTokens; ++t) decode_row(page, t, rows + t * dim());
}

void RowCodec::scores(const PageRead& page, const std::byte* prepared, int num_queries, int64_t,
                      float* scores, size_t stride) const {
  const auto* queries = reinterpret_cast<const float*>(prepared);
  AlignedArray<float> row(dim());
  for (size_t t = 0; t < kPageTokens; ++t) {
    decode_row(page.bytes, t, row.data());
    for (size_t q = 0; q < static_cast<size_t>(num_queries); ++q) {
      scores[q * stride + t] = dot(queries + q * dim(), row.data(), dim());
    }
  }
}

void RowCodec::accumulate(const PageRead& page, const float* p, size_t stride_p, int num_queries,
                          float* acc, size_t stride_acc) const {
  AlignedArray<float> row(dim());
  for (size_t t = 0; t < kPageTokens; ++t) {
    decode_row(page.bytes, t, row.data());
    for (size_t q = 0; q < static_cast<size_t>(num_queries); ++q) {
      const float weight = p[q * stride_p + t];
      float* sums = acc + q * stride_acc;
      for (size_t i = 0; i < dim(); ++i) sums[i] += weight * row[i];
    }
  }
}

}  // namespace kvant
