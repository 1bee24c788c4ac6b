#include "formats/decoded_codec.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/plain_query_codec.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;

class DecodedCodec final : public PlainQueryCodec {
 public:
  DecodedCodec(std::unique_ptr<Codec> codec, const CodecBinding& binding)
      : PlainQueryCodec(binding), codec_(std::move(codec)) {}

  size_t page_bytes() const override { return codec_->page_bytes(); }
  void encode(const PageInput& input, std::byte* page) const override {
    codec_->encode(input, page);
  }
  void decode(const std::byte* page, float* rows) const override { codec_->decode(page, rows); }

  void scores(const PageRead& page, const std::byte* prepared, int num_queries, int64_t,
              float* scores, size_t stride) const override {
    const std::vector<float> rows = decoded(page.bytes);
    const auto* queries = reinterpret_cast<const float*>(prepared);
    for (size_t i = 0; i < static_cast<size_t>(num_queries); ++i) {
      for (size_t t = 0; t < kT; ++t) {
        double sum = 0;
        for (size_t c = 0; c < dim(); ++c) {
          sum += double{queries[i * dim() + c]} * double{rows[t * dim() + c]};
        }
        scores[i * stride + t] = static_cast<float>(sum);
      }
    }
  }
  void accumulate(const PageRead& page, const float* p, size_t stride_p, int num_queries,
                  float* acc, size_t stride_acc) const override {
    const std::vector<float> rows = decoded(page.bytes);
    std::vector<double> sums(dim());
    for (size_t i = 0; i < static_cast<size_t>(num_queries); ++i) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (size_t t = 0; t < kT; ++t) {
        const double weight = double{p[i * stride_p + t]};
        for (size_t c = 0; c < dim(); ++c) sums[c] += weight * double{rows[t * dim() + c]};
      }
      for (size_t c = 0; c < dim(); ++c) acc[i * stride_acc + c] += static_cast<float>(sums[c]);
    }
  }

  std::string kernel_name() const override { return codec_->kernel_name() + "/decoded"; }
  bool has_kernel() const override { return false; }

 private:
  std::vector<float> decoded(const std::byte* page) const {
    std::vector<float> rows(kT * dim());
    codec_->decode(page, rows.data());
    return rows;
  }

  std::unique_ptr<Codec> codec_;
};

}  // namespace

Result<std::unique_ptr<Codec>> bind_decoded_codec(const FormatInfo& format,
                                                  const CodecBinding& binding) {
  KVANT_ASSIGN(std::unique_ptr<Codec> codec, bind_codec(format, binding));
  return std::unique_ptr<Codec>(std::make_unique<DecodedCodec>(std::move(codec), binding));
}

}  // namespace kvant
