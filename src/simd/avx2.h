// The vector vocabulary on AVX2 with FMA and F16C: 16 floats or integers in two registers.
//
// A vocabulary is what kernels are written in, once for all instruction sets: F32 (16 floats), I32
// (16 integers), U8 (64 bytes), and a dot product of unsigned byte codes with 16-bit integers.
// Every operation gives the same bits in every vocabulary; lanes are numbered 0 to 15.
//
// The dot product. A vector of codes is 16 lanes of four bytes (a *quad*); a row of integers comes
// as "limbs", 8 bytes for every four integers, arranged as load_limbs() likes. dot(acc, codes,
// limbs) adds to every lane its four codes times those four integers, exactly and modulo 2^32;
// start_acc(x) begins with x in every lane. finish() gives the sums for codes from which kCodeBias
// was subtracted.
//
// The source that includes this defines KVANT_ISA, the namespace: whatever is compiled with an
// instruction set's flags stays in a namespace of its own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "simd/inline.h"

namespace kvant::KVANT_ISA {

struct F32 {
  __m256 lo, hi;
};
struct I32 {
  __m256i lo, hi;
};
struct U8 {
  __m256i lo, hi;
};

KVANT_INLINE F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
KVANT_INLINE F32 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
KVANT_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
KVANT_INLINE void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
KVANT_INLINE F32 add(F32 a, F32 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
KVANT_INLINE F32 sub(F32 a, F32 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
KVANT_INLINE F32 mul(F32 a, F32 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
// a·b + c, rounded once.
KVANT_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// a > b ? a : b, so b where one is a NaN.
KVANT_INLINE F32 max(F32 a, F32 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
KVANT_INLINE F32 abs(F32 a) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, magnitude), _mm256_and_ps(a.hi, magnitude)};
}
// `value` with 0 in the lanes where x < bound.
KVANT_INLINE F32 zero_below(F32 x, float bound, F32 value) {
  const __m256 b = _mm256_set1_ps(bound);
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, b, _CMP_LT_OQ), value.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(x.hi, b, _CMP_LT_OQ), value.hi)};
}
// The first n lanes of a (n may be negative or beyond 16), `fill` in the others.
KVANT_INLINE F32 keep_first(F32 a, int n, float fill) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 lo = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), index));
  const __m256 hi = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), index));
  return {_mm256_blendv_ps(_mm256_set1_ps(fill), a.lo, lo),
          _mm256_blendv_ps(_mm256_set1_ps(fill), a.hi, hi)};
}

// Sum in the one order that all vocabularies share: lane l + lane l + 8, then 4, 2, 1.
KVANT_INLINE float reduce_add(F32 a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
KVANT_INLINE float reduce_max(F32 a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

KVANT_INLINE I32 set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
KVANT_INLINE I32 add(I32 a, I32 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
KVANT_INLINE I32 sub(I32 a, I32 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
KVANT_INLINE int32_t reduce_add(I32 a) {
  const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
  const __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
// Four sums or maxima.
KVANT_INLINE void reduce_add4(F32 a, F32 b, F32 c, F32 d, float* out) {
  out[0] = reduce_add(a), out[1] = reduce_add(b), out[2] = reduce_add(c), out[3] = reduce_add(d);
}
KVANT_INLINE void reduce_max4(F32 a, F32 b, F32 c, F32 d, float* out) {
  out[0] = reduce_max(a), out[1] = reduce_max(b), out[2] = reduce_max(c), out[3] = reduce_max(d);
}
KVANT_INLINE void reduce_add4(I32 a, I32 b, I32 c, I32 d, int32_t* out) {
  out[0] = reduce_add(a), out[1] = reduce_add(b), out[2] = reduce_add(c), out[3] = reduce_add(d);
}
// To the nearest integer, ties to even.
KVANT_INLINE I32 round(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
KVANT_INLINE F32 to_float(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
// 2^n for n in [−126, 127].
KVANT_INLINE F32 power_of_two(I32 n) {
  const __m256i bias = _mm256_set1_epi32(127);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.lo, bias), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.hi, bias), 23))};
}

// 16 floats of a narrower type.
KVANT_INLINE F32 from_f16(__m256i h) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
KVANT_INLINE __m256i load16(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
KVANT_INLINE __m128i load8(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
KVANT_INLINE F32 load_f16(const void* p) {
  const auto* halves = static_cast<const uint16_t*>(p);
  return {_mm256_cvtph_ps(load8(halves)), _mm256_cvtph_ps(load8(halves + 8))};
}
KVANT_INLINE __m256 from_bf16(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
KVANT_INLINE F32 load_bf16(const void* p) {
  const auto* halves = static_cast<const uint16_t*>(p);
  return {from_bf16(load8(halves)), from_bf16(load8(halves + 8))};
}
// Sign-extended to 16 bits and shifted by 7, an E4M3 byte is a binary16 of 2^-8 its value, but for
// a copy of the sign in bit 14. NaN codes become all ones, a binary16 NaN.
KVANT_INLINE F32 load_e4m3(const void* p) {
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load8(p)), 7);
  const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  const __m256i nan =
      _mm256_cmpeq_epi16(_mm256_or_si256(shifted, _mm256_set1_epi16(static_cast<int16_t>(0xc000))),
                         _mm256_set1_epi16(static_cast<int16_t>(0xff80)));
  return mul(from_f16(_mm256_or_si256(half, nan)), set1(256.0f));
}
KVANT_INLINE F32 load_e5m2(const void* p) {
  return from_f16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load8(p)), 8));
}

// One stage of a Walsh–Hadamard transform inside the vector: lanes l and l + kHalf (l & kHalf = 0)
// become their sum and difference.
template <int kHalf>
KVANT_INLINE F32 butterfly(F32 a) {
  if constexpr (kHalf == 8) {
    return {_mm256_add_ps(a.lo, a.hi), _mm256_sub_ps(a.lo, a.hi)};
  } else {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i upper = _mm256_cmpgt_epi32(_mm256_and_si256(index, _mm256_set1_epi32(kHalf)),
                                             _mm256_setzero_si256());
    const __m256 sign = _mm256_castsi256_ps(_mm256_slli_epi32(upper, 31));
    const auto stage = [&](__m256 x) KVANT_INLINE_LAMBDA {
      const __m256 other =
          kHalf == 4 ? _mm256_permute2f128_ps(x, x, 1)
                     : (kHalf == 2 ? _mm256_permute_ps(x, 0x4e) : _mm256_permute_ps(x, 0xb1));
      return _mm256_add_ps(other, _mm256_xor_ps(x, sign));
    };
    return {stage(a.lo), stage(a.hi)};
  }
}

KVANT_INLINE U8 load_bytes(const uint8_t* p) { return {load16(p), load16(p + 32)}; }
KVANT_INLINE void store_bytes(uint8_t* p, U8 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.hi);
}
KVANT_INLINE U8 bit_or(U8 a, U8 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
// The `kWidth` bits of every byte that begin at bit kShift.
template <int kShift, int kWidth>
KVANT_INLINE U8 field(U8 a) {
  const __m256i mask = _mm256_set1_epi8((1 << kWidth) - 1);
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, kShift), mask),
          _mm256_and_si256(_mm256_srli_epi16(a.hi, kShift), mask)};
}
// Every byte shifted left by n; REQUIRES that no bit leaves its byte.
KVANT_INLINE U8 shift_left(U8 a, int n) {
  const __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_sll_epi16(a.lo, count), _mm256_sll_epi16(a.hi, count)};
}

// Every byte of `places`, 0 to 15, replaced by that byte of the table; a table is 16 bytes, four
// times over.
KVANT_INLINE U8 look_up(U8 table, U8 places) {
  return {_mm256_shuffle_epi8(table.lo, places.lo), _mm256_shuffle_epi8(table.hi, places.hi)};
}

// Even and odd bytes of the codes as 16-bit integers, for products of pairs (dims 0 and 2, dims 1
// and 3 of a quad) with rows of two limbs. vpmaddubsw isn't used for them: it saturates at 16 bits,
// and two of it (one for each limb) cost what two vpmaddwd cost.
struct Codes {
  U8 even, odd;
};
struct Acc {
  I32 sum;
};
inline constexpr int32_t kCodeBias = 0;
inline constexpr bool kNeedsDotProducts = false;
// Acc that the kernels' inner loops may hold at once.
inline constexpr int kAccumulators = 4;
KVANT_INLINE Codes split(U8 a) {
  const __m256i low = _mm256_set1_epi16(255);
  return {{_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low)},
          {_mm256_srli_epi16(a.lo, 8), _mm256_srli_epi16(a.hi, 8)}};
}
KVANT_INLINE Acc start_acc(int32_t x) { return {set1(x)}; }
KVANT_INLINE __m256i broadcast_word(const std::byte* p) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(p)));
}
// GCC would sum several products before it adds them to the accumulators, and run out of registers;
// an empty statement that claims to change them keeps the order.
KVANT_INLINE void add_pairs(I32& sum, U8 codes, __m256i pair) {
  sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(codes.lo, pair));
  sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(codes.hi, pair));
  asm("" : "+x"(sum.lo), "+x"(sum.hi));
}
struct Limbs {
  __m256i even, odd;
};
KVANT_INLINE Limbs load_limbs(const std::byte* p) {
  return {broadcast_word(p), broadcast_word(p + 4)};
}
KVANT_INLINE Acc dot(Acc acc, Codes codes, Limbs limbs) {
  add_pairs(acc.sum, codes.even, limbs.even);
  add_pairs(acc.sum, codes.odd, limbs.odd);
  return acc;
}
KVANT_INLINE I32 finish(Acc acc) { return acc.sum; }

// One byte of each of a quad's four integers, signed or not, beside codes of at most 127. Products
// of neighbours are summed in runs of 16-bit integers, of so many quads that none can be too large
// for products up to `largest`.
struct Limb {
  __m256i words;
};
KVANT_INLINE Limb load_limb(const std::byte* p) { return {broadcast_word(p)}; }
struct Run {
  __m256i lo, hi;
};
inline constexpr int kRuns = 4;
constexpr int run_quads(int largest) { return 32767 / (2 * largest); }
KVANT_INLINE Run start_run() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
KVANT_INLINE Run add_pairs(Run run, __m256i lo, __m256i hi) {
  run.lo = _mm256_add_epi16(run.lo, lo);
  run.hi = _mm256_add_epi16(run.hi, hi);
  asm("" : "+x"(run.lo), "+x"(run.hi));
  return run;
}
KVANT_INLINE Run dot_signed(Run run, U8 codes, Limb limb) {
  return add_pairs(run, _mm256_maddubs_epi16(codes.lo, limb.words),
                   _mm256_maddubs_epi16(codes.hi, limb.words));
}
KVANT_INLINE Run dot_unsigned(Run run, U8 codes, Limb limb) {
  return add_pairs(run, _mm256_maddubs_epi16(limb.words, codes.lo),
                   _mm256_maddubs_epi16(limb.words, codes.hi));
}
KVANT_INLINE I32 add_run(I32 sum, Run run) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(run.lo, ones)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(run.hi, ones))};
}
// The lowest byte of each.
KVANT_INLINE void store_low_bytes(std::byte* limbs, I32 a) {
  const __m256i low = _mm256_set1_epi32(255);
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packs_epi32(_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low)), 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(limbs),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
// The high limb of 256·high + low with low in [−128, 127], in the lowest byte.
KVANT_INLINE I32 high_limb(I32 a) {
  const __m256i half = _mm256_set1_epi32(128);
  return {_mm256_srli_epi32(_mm256_add_epi32(a.lo, half), 8),
          _mm256_srli_epi32(_mm256_add_epi32(a.hi, half), 8)};
}
KVANT_INLINE I32 times_256(I32 a) {
  return {_mm256_slli_epi32(a.lo, 8), _mm256_slli_epi32(a.hi, 8)};
}

// 16 integers of magnitude ≤ 32639 as limbs: per quad the pairs (0, 2) and (1, 3) as 16-bit
// integers.
KVANT_INLINE void store_limbs(std::byte* limbs, I32 a) {
  const auto pairs = [](__m256i x) KVANT_INLINE_LAMBDA {
    return _mm256_blend_epi16(x, _mm256_slli_epi32(_mm256_shuffle_epi32(x, 0x0e), 16), 0xaa);
  };
  const __m256i both = _mm256_unpacklo_epi64(pairs(a.lo), pairs(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(limbs), _mm256_permute4x64_epi64(both, 0xd8));
}

}  // namespace kvant::KVANT_ISA
