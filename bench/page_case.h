// One call of a page kernel with everything that it needs: a table, a format, a head size and a
// number of queries, on random inputs of a fixed seed. What the kernels' benchmark times and the
// count of instructions counts.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/float_types.h"
#include "base/rng.h"
#include "formats/fp4_types.h"
#include "formats/kernels/tables.h"
#include "kvant/format.h"

namespace kvant {

inline constexpr int kTokens = kPageTokens;
inline constexpr uint64_t kSeed = 1;

enum class PageKind { kInt, kFloat };

struct PageDesc {
  bool key;
  const char* format;
  PageKind kind;
  int bits = 8;
  ScaleLayout layout = ScaleLayout::kToken;
  int group = 0;  // channels that share a scale; 0: all
  bool zero_point = false;
  FloatType type = FloatType::kF32;
  bool blocks = false;  // block scales of one byte, and of integers a table of codes
};

// <side>/<format>/<kernels>/d<dim>/q<queries per KV head>
inline std::string case_name(const PageKernels& table, const PageDesc& desc, int dim, int queries) {
  return std::string(desc.key ? "key/" : "value/") + desc.format + "/" + table.name + "/d" +
         std::to_string(dim) + "/q" + std::to_string(queries);
}

// Fills `bytes` with random ones that are harmless as codes and, with the upper exponent bit
// cleared, as floats of every type.
inline AlignedArray<uint8_t> random_pages(size_t bytes) {
  AlignedArray<uint8_t> out(round_up(bytes, 8));
  Rng random(kSeed);
  for (size_t i = 0; i < out.size(); i += 8) {
    const uint64_t word = random.next() & 0xbfbfbfbfbfbfbfbfull;
    std::memcpy(out.data() + i, &word, sizeof(word));
  }
  return out;
}

class PageCase {
 public:
  PageCase(const PageKernels& table, const PageDesc& desc, int dim, int queries)
      : table_(table), desc_(desc), dim_(dim), num_queries_(queries) {
    Rng random(kSeed);
    scale_.assign(static_cast<size_t>(kTokens * dim), f32_to_f16(0.01f));
    block_scale_.assign(scale_.size(), 0x38);  // 1 as E4M3
    const size_t q = static_cast<size_t>(queries);
    const size_t d = static_cast<size_t>(dim);
    queries_.resize(q * d);
    for (float& x : queries_) x = random.normal();
    p_.resize(q * kTokens);
    for (float& x : p_) x = static_cast<float>(random.uniform());
    out_.resize(q * std::max(d, size_t{kTokens}));
    prepared_ = AlignedArray<std::byte>(table.int_query_bytes(queries, shape()));
    prepare();
  }

  size_t page_bytes() const {
    if (desc_.kind == PageKind::kFloat)
      return static_cast<size_t>(kTokens * dim_) * float_bytes(desc_.type);
    return desc_.key ? key_code_bytes(desc_.bits, dim_) : value_code_bytes(desc_.bits, dim_);
  }

  IntShape shape() const { return {desc_.bits, dim_, num_groups(), desc_.layout}; }

  void prepare() {
    if (desc_.kind != PageKind::kInt || !desc_.key) return;
    table_.int_prepare_query(queries_.data(), num_queries_, shape(), prepared_.data());
  }

  void run(const uint8_t* bytes) {
    const auto d = static_cast<size_t>(dim_);
    if (desc_.kind == PageKind::kInt) {
      const IntPage page = {.codes = bytes,
                            .scale = scale_.data(),
                            .zero = desc_.zero_point ? scale_.data() : nullptr,
                            .factor = nullptr,
                            .bits = desc_.bits,
                            .offset = desc_.blocks       ? kE2m1Offset
                                      : desc_.zero_point ? 0
                                                         : 1 << (desc_.bits - 1),
                            .dim = dim_,
                            .num_groups = num_groups(),
                            .layout = desc_.layout,
                            .across = nullptr,
                            .block_scale = desc_.blocks ? block_scale_.data() : nullptr,
                            .block_type = BlockScale::kE4m3,
                            .unit = 0.5f,
                            .levels = desc_.blocks ? kE2m1Levels.data() : nullptr};
      if (desc_.key) {
        table_.int_key_scores(page, prepared_.data(), num_queries_, out_.data(), kTokens);
      } else {
        table_.int_value_accumulate(page, p_.data(), kTokens, num_queries_, out_.data(), d);
      }
      return;
    }
    const FloatPage page = {.data = reinterpret_cast<const std::byte*>(bytes),
                            .type = desc_.type,
                            .dim = dim_,
                            .num_tokens = kTokens,
                            .scale = nullptr,
                            .layout = ScaleLayout::kPage,
                            .block_scale = desc_.blocks ? block_scale_.data() : nullptr};
    if (desc_.key) {
      table_.float_key_scores(page, queries_.data(), num_queries_, out_.data(), kTokens);
    } else {
      table_.float_value_accumulate(page, p_.data(), kTokens, num_queries_, out_.data(), d);
    }
  }

  std::vector<float>& out() { return out_; }

 private:
  int num_groups() const { return desc_.group == 0 ? 1 : dim_ / desc_.group; }

  const PageKernels& table_;
  const PageDesc& desc_;
  int dim_;
  int num_queries_;
  std::vector<uint16_t> scale_;
  std::vector<uint8_t> block_scale_;
  std::vector<float> queries_;
  std::vector<float> p_;
  std::vector<float> out_;
  AlignedArray<std::byte> prepared_;
};

// Whether the table gives the scalar table's bits on the page at `bytes`.
inline bool agrees_with_scalar(const PageKernels& table, const PageDesc& desc, int dim, int queries,
                               const uint8_t* bytes) {
  PageCase fast(table, desc, dim, queries);
  PageCase slow(page_kernels(Isa::kScalar), desc, dim, queries);
  fast.run(bytes);
  slow.run(bytes);
  return std::memcmp(fast.out().data(), slow.out().data(), fast.out().size() * sizeof(float)) == 0;
}

}  // namespace kvant
