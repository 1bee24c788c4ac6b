// Page kernels: the arithmetic of one 64-token page on one instruction set, behind one table of
// functions.
//
// Codecs (formats/*.cc) know what bytes mean; these functions know how to multiply them fast. The
// scalar table is the specification, and every other table gives the same bits: integer sums don't
// depend on the order, and each float operation around them is done per element, or in 16 lanes, in
// a fixed order (docs/numerics.md).
//
// Code layout. T = 64 tokens, D = dim (a multiple of 16). Codes are unsigned, u = code + offset,
// `bits` wide, cut into planes (widths 8; 4; 2; 1, largest first: 3 = 2+1, 5 = 4+1, 6 = 4+2, 7 =
// 4+2+1, the largest plane holding the low bits of u).
//   K: in a plane of width w, per token group tg (of 16 tokens), nv = ceil((D/4) / (8/w)) vectors
//   of 64 bytes; dim group g (four dims 4g..4g+3) lies in vector g % nv at bit w·(g / nv); the byte
//   of token t and dim i is 4·(t % 16) + i % 4. Vectors run [plane][tg][vector]. V: the same with
//   token quads for dim groups. Per channel group cg (16 channels): nv = 16 / (8/w) vectors; token
//   quad q (tokens 4q..4q+3) lies in vector q % nv at bit w·(q / nv); the byte of channel c and
//   token t is 4·(c % 16) + t % 4. Vectors run [plane][cg][vector].
// What a vector's unused bits hold is never looked at by a result.
//
// Value of a code: x = scale·(u − offset) + zero, with scale ≥ 0 and zero in binary16, per page,
// token group or channel. Where scales are per channel, a factor per token may multiply all that;
// it is a byte b that stands for the positive binary16 of the bits b << 7, or a binary16. Where
// they are per token, a binary16 per channel may, of V. Scales of blocks may be E4M3 or E8M0 bytes
// times one float, and codes of 4 bits may be places in a table of 16 bytes u ≤ 32.
//
// Precision (docs/numerics.md): queries and probabilities are quantized to integers with one float
// scale per query row and group (and, for V, page): beside codes of more than 4 bits of magnitude ≤
// 32639, so that both limbs of 256·hi + lo are signed bytes, beside others of one limb. Every
// function is safe to call from any thread; a query's result doesn't depend on the other queries of
// the call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/cpu.h"

namespace kvant {

// Bytes of the codes of one page side of D channels and 64 tokens.
size_t key_code_bytes(int bits, int dim);
size_t value_code_bytes(int bits, int dim);

// Whether the integer kernels can hold a key row's exact sum in 32 bits: 32639·D·max|u − offset| <
// 2^31, and D is a multiple of 16 up to kMaxIntDim. A codec refuses other widths when it is bound.
// (8 bits: D ≤ 256 with zero points, 512 without; 4 bits: all.)
inline constexpr int kMaxIntDim = 1024;
bool int_dim_fits(int bits, int offset, int dim);

// How scale and zero are laid out: which of the identities of algorithms.md applies.
enum class ScaleLayout : uint8_t {
  kPage,     // scale[1] (and zero[1])
  kToken,    // scale[num_groups][64], one row per group of D/num_groups neighbouring channels, a
             // multiple of 16
  kChannel,  // scale[D]
};

// What the bytes of block scales are (OCP Microscaling Formats, 2023).
enum class BlockScale : uint8_t { kE4m3, kE8m0 };

// What prepared queries of integer pages depend on.
struct IntShape {
  int bits;
  int dim;
  int num_groups;  // of kToken; 1 otherwise
  ScaleLayout layout;
};

struct IntPage {
  const uint8_t* codes;   // layout above, 64-byte aligned
  const uint16_t* scale;  // binary16; unused where there are block scales
  const uint16_t* zero;   // binary16, or nullptr: no zero points
  const uint8_t* factor;  // [64], of kChannel; nullptr: all are 1
  int bits;               // 1..8
  int offset;             // 0 with zero points, else 2^(bits-1)
  int dim;
  int num_groups;  // of kToken; 1 otherwise
  ScaleLayout layout;
  // Binary16 along the other axis; nullptr: all are 1. Of kChannel [64], instead of `factor`; of
  // kToken [dim], V alone.
  const uint16_t* across = nullptr;
  // Of kToken, instead of `scale`: [num_groups][64] bytes, each times `unit`.
  const uint8_t* block_scale = nullptr;
  BlockScale block_type = BlockScale::kE4m3;
  float unit = 1.0f;
  // [16]: the u ≤ 32 that a code of 4 bits stands for; nullptr: itself.
  const uint8_t* levels = nullptr;
  // What will be read after this page, or nullptr: as many bytes as the codes have are asked for
  // meanwhile.
  const uint8_t* next = nullptr;

  IntShape shape() const { return {bits, dim, num_groups, layout}; }
};

// Which float a stored element is.
enum class FloatType : uint8_t { kF32, kF16, kBf16, kE4m3, kE5m2 };
size_t float_bytes(FloatType type);

// Channels that share an E8M0 scale in a page of floats.
inline constexpr int kMxBlock = 32;

// A page of floats: K is [D][64] (dim-major), V is [64][D].
struct FloatPage {
  const std::byte* data;
  FloatType type;
  int dim;
  int num_tokens;         // tokens that exist; what lies behind them may be anything, NaN included
  const uint16_t* scale;  // binary16; nullptr: none
  ScaleLayout layout;     // kPage or kToken with one group
  // [dim/kMxBlock][64] E8M0 instead of `scale`; not for float_value_from_key.
  const uint8_t* block_scale = nullptr;
  // What will be read after this page, or nullptr: as many bytes as the page has are asked for
  // meanwhile.
  const std::byte* next = nullptr;
};

struct PageKernels {
  Isa isa;
  bool needs_dot_products;  // NEON's second table: only CPUs with sdot run it
  const char* name;         // "scalar", "avx2", "avx512", "avx512_vnni", "neon", "neon_dot"

  // Prepared queries for integer pages. For kPage and kToken layouts: q is quantized once. For
  // kChannel pages the scale differs per page, so the prepared form keeps q in float32 and
  // key_scores quantizes q∘scale per page.
  size_t (*int_query_bytes)(int num_queries, const IntShape& shape);
  void (*int_prepare_query)(const float* queries, int num_queries, const IntShape& shape,
                            std::byte* prepared);
  void (*int_key_scores)(const IntPage& page, const std::byte* prepared, int num_queries,
                         float* scores, size_t stride);
  void (*int_value_accumulate)(const IntPage& page, const float* p, size_t stride_p,
                               int num_queries, float* acc, size_t stride_acc);

  // Float pages; queries are plain [num_queries][D]. D is a multiple of 16. Scores behind
  // num_tokens are −infinity.
  void (*float_key_scores)(const FloatPage& page, const float* queries, int num_queries,
                           float* scores, size_t stride);
  void (*float_value_accumulate)(const FloatPage& page, const float* p, size_t stride_p,
                                 int num_queries, float* acc, size_t stride_acc);
  // V taken out of a K page ([D][64]): channels [first, first + count). For latent caches.
  void (*float_value_from_key)(const FloatPage& page, int first, int count, const float* p,
                               size_t stride_p, int num_queries, float* acc, size_t stride_acc);

  // Softmax pieces over rows of 64 scores, one after the other: in place to exp(score − max), and
  // each row's sum. REQUIRES scores ≤ max or NaN. exp is ours, to 2 ulp, and 0 below −87; where max
  // is −infinity (everything masked) all 64 and the sum are 0. The order of a sum is fixed: 16
  // lanes by t % 16, then pairwise.
  void (*exp_and_sum)(float* scores, int num_rows, const float* max, float* sum);
  // Largest of each row's 64 scores; unspecified if one is NaN.
  void (*row_max)(const float* scores, int num_rows, float* max);
  // acc[0..n) *= factor.
  void (*scale_row)(float* acc, float factor, int n);

  // Orthonormal fast Walsh–Hadamard transform in place of `num_rows` rows of n floats (n a power of
  // two ≤ 256), `stride` apart; the same bits on every ISA.
  void (*hadamard)(float* rows, int num_rows, size_t stride, int n);
};

// The table for one instruction set. REQUIRES isa_supported(isa).
const PageKernels& page_kernels(Isa isa);

// Exported by the scalar source for tests and codecs: packs and unpacks codes of one page (u,
// row-major [64][D]).
void pack_key_codes(const uint8_t* u, int bits, int dim, uint8_t* codes);
void unpack_key_codes(const uint8_t* codes, int bits, int dim, uint8_t* u);
void pack_value_codes(const uint8_t* u, int bits, int dim, uint8_t* codes);
void unpack_value_codes(const uint8_t* codes, int bits, int dim, uint8_t* u);

}  // namespace kvant
