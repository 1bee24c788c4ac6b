#include "formats/rotated.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/rng.h"
#include "formats/page_kernels.h"
#include "formats/stored_scale.h"

namespace kvant {
namespace {

constexpr int kMaxBlock = 256;  // the widest transform that the kernels have

class RotatedCodec final : public Codec {
 public:
  RotatedCodec(std::unique_ptr<Codec> inner, const CodecBinding& binding, RotationSigns signs)
      : inner_(std::move(inner)),
        dim_(static_cast<size_t>(binding.dim)),
        rotation_(binding.dim, binding.seed, signs, binding.isa) {}

  size_t page_bytes() const override { return inner_->page_bytes(); }

  void encode(const PageInput& input, std::byte* page) const override {
    AlignedArray<float> rotated(kPageTokens * dim_);
    std::transform(input.rows, input.rows + kPageTokens * dim_, rotated.data(), saturate);
    rotation_.turn(rotated.data(), kPageTokens);
    PageInput inner_input = input;
    inner_input.rows = rotated.data();
    inner_->encode(inner_input, page);
  }

  void decode(const std::byte* page, float* rows) const override {
    inner_->decode(page, rows);
    rotation_.turn_back(rows, kPageTokens, dim_);
  }

  size_t query_bytes(int num_queries) const override { return inner_->query_bytes(num_queries); }

  void prepare_query(const float* queries, int num_queries, std::byte* prepared) const override {
    const auto count = static_cast<size_t>(num_queries);
    AlignedArray<float> rotated(count * dim_);
    std::copy_n(queries, count * dim_, rotated.data());
    rotation_.turn(rotated.data(), count);
    inner_->prepare_query(rotated.data(), num_queries, prepared);
  }

  void scores(const PageRead& page, const std::byte* prepared, int num_queries,
              int64_t first_position, float* scores, size_t stride) const override {
    inner_->scores(page, prepared, num_queries, first_position, scores, stride);
  }
  void accumulate(const PageRead& page, const float* p, size_t stride_p, int num_queries,
                  float* acc, size_t stride_acc) const override {
    inner_->accumulate(page, p, stride_p, num_queries, acc, stride_acc);
  }
  void finish(float* acc, int num_queries, size_t stride) const override {
    inner_->finish(acc, num_queries, stride);
    rotation_.turn_back(acc, static_cast<size_t>(num_queries), stride);
  }

  std::string kernel_name() const override { return inner_->kernel_name() + "+hadamard"; }
  bool has_kernel() const override { return inner_->has_kernel(); }

 private:
  std::unique_ptr<Codec> inner_;
  size_t dim_;
  Rotation rotation_;
};

}  // namespace

Rotation::Rotation(int dim, uint64_t seed, RotationSigns signs, Isa isa)
    : dim_(static_cast<size_t>(dim)),
      block_(rotation_block(dim)),
      kernels_(page_kernels(isa)),
      signs_(dim_) {
  Rng rng(seed);
  uint64_t bits = 0;
  for (size_t i = 0; i < dim_; ++i) {
    if (i % 64 == 0 && signs == RotationSigns::kSeeded) bits = rng.next();
    signs_[i] = (bits >> (i % 64)) & 1 ? -1.0f : 1.0f;
  }
}

void Rotation::turn(float* rows, size_t num_rows) const {
  for (size_t r = 0; r < num_rows; ++r) {
    float* row = rows + r * dim_;
    for (size_t i = 0; i < dim_; ++i) row[i] *= signs_[i];
  }
  transform(rows, num_rows, dim_);
}

// H and S are their own inverses: x = S·H·y.
void Rotation::turn_back(float* rows, size_t num_rows, size_t stride) const {
  transform(rows, num_rows, stride);
  for (size_t r = 0; r < num_rows; ++r) {
    for (size_t i = 0; i < dim_; ++i) rows[r * stride + i] *= signs_[i];
  }
}

void Rotation::transform(float* rows, size_t num_rows, size_t stride) const {
  const auto block = static_cast<size_t>(block_);
  for (size_t first = 0; first < dim_; first += block)
    kernels_.hadamard(rows + first, static_cast<int>(num_rows), stride, block_);
}

std::unique_ptr<Codec> rotated_codec(std::unique_ptr<Codec> inner, const CodecBinding& binding,
                                     RotationSigns signs) {
  return std::make_unique<RotatedCodec>(std::move(inner), binding, signs);
}

int rotation_block(int dim) {
  const int power = dim & -dim;  // the largest power of two that divides dim
  return std::min(power, kMaxBlock);
}

bool can_rotate(const FormatInfo& format) {
  const FormatNeeds& needs = format.needs;
  return !format.exact && !format.rotated && !format.before_rope && !needs.pre_rope_rows &&
         !needs.previous_layer && !needs.key_rows && !needs.artifacts;
}

FormatDefinition rotated_definition(const FormatDefinition& plain) {
  FormatDefinition d = plain;
  d.info.name += "_rot";
  d.info.layout += "_rot";
  d.info.summary += ", rotated";
  d.info.rotated = true;
  d.make = [make = plain.make](const CodecBinding& binding) -> std::unique_ptr<Codec> {
    return rotated_codec(make(binding), binding, RotationSigns::kSeeded);
  };
  d.idempotent = false;  // the rotation back and forth rounds
  return d;
}

}  // namespace kvant
