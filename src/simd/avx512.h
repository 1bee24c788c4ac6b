// The vector vocabulary on AVX-512 (F, BW, DQ, VL), with VNNI's dot product where the compiler's
// flags have it. What the operations mean is said in simd/avx2.h; one register holds what takes two
// there.
//
// Only intrinsics that SIMDe has, or that tests/formats/kernels/simde adds, are used: the tests run
// this file on machines without AVX-512.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "simd/inline.h"

namespace kvant::KVANT_ISA {

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct U8 {
  __m512i v;
};

KVANT_INLINE F32 zero() { return {_mm512_setzero_ps()}; }
KVANT_INLINE F32 set1(float x) { return {_mm512_set1_ps(x)}; }
KVANT_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
KVANT_INLINE void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
KVANT_INLINE F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
KVANT_INLINE F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
KVANT_INLINE F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
KVANT_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
KVANT_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
KVANT_INLINE F32 abs(F32 a) {
  return {_mm512_and_ps(a.v, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff)))};
}
KVANT_INLINE F32 zero_below(F32 x, float bound, F32 value) {
  return {_mm512_mask_mov_ps(value.v, _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(bound), _CMP_LT_OQ),
                             _mm512_setzero_ps())};
}
KVANT_INLINE F32 keep_first(F32 a, int n, float fill) {
  const int kept = n < 0 ? 0 : (n > 16 ? 16 : n);
  return {_mm512_mask_mov_ps(_mm512_set1_ps(fill), static_cast<__mmask16>((1u << kept) - 1), a.v)};
}

KVANT_INLINE float reduce_add(F32 a) {
  const __m512 eight = _mm512_add_ps(a.v, _mm512_shuffle_f32x4(a.v, a.v, 0x4e));
  const __m128 low = _mm512_castps512_ps128(eight);
  const __m128 four =
      _mm_add_ps(low, _mm512_castps512_ps128(_mm512_shuffle_f32x4(eight, eight, 0x01)));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
KVANT_INLINE float reduce_max(F32 a) {
  const __m512 eight = _mm512_max_ps(a.v, _mm512_shuffle_f32x4(a.v, a.v, 0x4e));
  const __m128 low = _mm512_castps512_ps128(eight);
  const __m128 four =
      _mm_max_ps(low, _mm512_castps512_ps128(_mm512_shuffle_f32x4(eight, eight, 0x01)));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

KVANT_INLINE I32 set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
KVANT_INLINE I32 add(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
KVANT_INLINE I32 sub(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
KVANT_INLINE __m256i low_half(__m512i a) { return _mm512_castsi512_si256(a); }
KVANT_INLINE __m256i high_half(__m512i a) { return _mm512_extracti64x4_epi64(a, 1); }
KVANT_INLINE int32_t reduce_add(I32 a) {
  const __m256i eight = _mm256_add_epi32(low_half(a.v), high_half(a.v));
  const __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

// Four sums or maxima at once, as reduce_add and reduce_max give them.
template <typename Combine>
KVANT_INLINE __m512 reduce4(__m512 a, __m512 b, __m512 c, __m512 d, Combine combine) {
  const __m512 ab = combine(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = combine(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  const __m512 four =
      combine(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 two = combine(four, _mm512_shuffle_ps(four, four, 0x4e));
  return combine(two, _mm512_shuffle_ps(two, two, 0xb1));
}
// Lanes 0, 4, 8 and 12.
KVANT_INLINE __m128i every_fourth(__m512 a) {
  const __m512i lanes = _mm512_castps_si512(a);
  const __m512i index = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castsi512_si128(_mm512_permutexvar_epi32(index, lanes));
}
KVANT_INLINE void reduce_add4(F32 a, F32 b, F32 c, F32 d, float* out) {
  const auto combine = [](__m512 x, __m512 y) KVANT_INLINE_LAMBDA { return _mm512_add_ps(x, y); };
  _mm_storeu_ps(out, _mm_castsi128_ps(every_fourth(reduce4(a.v, b.v, c.v, d.v, combine))));
}
KVANT_INLINE void reduce_max4(F32 a, F32 b, F32 c, F32 d, float* out) {
  const auto combine = [](__m512 x, __m512 y) KVANT_INLINE_LAMBDA { return _mm512_max_ps(x, y); };
  _mm_storeu_ps(out, _mm_castsi128_ps(every_fourth(reduce4(a.v, b.v, c.v, d.v, combine))));
}
KVANT_INLINE void reduce_add4(I32 a, I32 b, I32 c, I32 d, int32_t* out) {
  const auto combine = [](__m512 x, __m512 y) KVANT_INLINE_LAMBDA {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y)));
  };
  const __m512 sums = reduce4(_mm512_castsi512_ps(a.v), _mm512_castsi512_ps(b.v),
                              _mm512_castsi512_ps(c.v), _mm512_castsi512_ps(d.v), combine);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), every_fourth(sums));
}

KVANT_INLINE I32 round(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
KVANT_INLINE F32 to_float(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
KVANT_INLINE F32 power_of_two(I32 n) {
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}

KVANT_INLINE __m256i load16(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
KVANT_INLINE __m128i load8(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
KVANT_INLINE F32 load_f16(const void* p) { return {_mm512_cvtph_ps(load16(p))}; }
KVANT_INLINE F32 load_bf16(const void* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(p)), 16))};
}
KVANT_INLINE F32 load_e4m3(const void* p) {
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load8(p)), 7);
  const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  const __m256i nan =
      _mm256_cmpeq_epi16(_mm256_or_si256(shifted, _mm256_set1_epi16(static_cast<int16_t>(0xc000))),
                         _mm256_set1_epi16(static_cast<int16_t>(0xff80)));
  return mul({_mm512_cvtph_ps(_mm256_or_si256(half, nan))}, set1(256.0f));
}
KVANT_INLINE F32 load_e5m2(const void* p) {
  return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load8(p)), 8))};
}

template <int kHalf>
KVANT_INLINE F32 butterfly(F32 a) {
  constexpr __mmask16 kUpper =
      kHalf == 8 ? 0xff00 : (kHalf == 4 ? 0xf0f0 : (kHalf == 2 ? 0xcccc : 0xaaaa));
  __m512 other;
  if constexpr (kHalf == 8) other = _mm512_shuffle_f32x4(a.v, a.v, 0x4e);
  if constexpr (kHalf == 4) other = _mm512_shuffle_f32x4(a.v, a.v, 0xb1);
  if constexpr (kHalf == 2) other = _mm512_shuffle_ps(a.v, a.v, 0x4e);
  if constexpr (kHalf == 1) other = _mm512_shuffle_ps(a.v, a.v, 0xb1);
  return {_mm512_mask_sub_ps(_mm512_add_ps(other, a.v), kUpper, other, a.v)};
}

KVANT_INLINE U8 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
KVANT_INLINE void store_bytes(uint8_t* p, U8 a) { _mm512_storeu_si512(p, a.v); }
KVANT_INLINE U8 bit_or(U8 a, U8 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int kShift, int kWidth>
KVANT_INLINE U8 field(U8 a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, kShift), _mm512_set1_epi8((1 << kWidth) - 1))};
}
KVANT_INLINE U8 shift_left(U8 a, int n) { return {_mm512_sll_epi16(a.v, _mm_cvtsi32_si128(n))}; }

KVANT_INLINE U8 look_up(U8 table, U8 places) { return {_mm512_shuffle_epi8(table.v, places.v)}; }

inline constexpr int32_t kCodeBias = 0;
inline constexpr bool kNeedsDotProducts = false;
// Acc that the kernels' inner loops may hold at once.
inline constexpr int kAccumulators = 12;

KVANT_INLINE __m512i broadcast_word(const std::byte* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  return _mm512_set1_epi32(word);
}

struct Limb {
  __m512i words;
};
KVANT_INLINE Limb load_limb(const std::byte* p) { return {broadcast_word(p)}; }
KVANT_INLINE void store_low_bytes(std::byte* limbs, I32 a) {
  const __m512i first = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m512i words = _mm512_shuffle_epi8(a.v, first);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(limbs), every_fourth(_mm512_castsi512_ps(words)));
}
KVANT_INLINE I32 high_limb(I32 a) {
  return {_mm512_srli_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(128)), 8)};
}
KVANT_INLINE I32 times_256(I32 a) { return {_mm512_slli_epi32(a.v, 8)}; }

#if defined(KVANT_VNNI)

// Unsigned codes times both signed limbs of 256·high + low, summed apart. A block is 16 high limbs
// and 16 low limbs.
using Codes = U8;
struct Acc {
  I32 high, low;
};
KVANT_INLINE Codes split(U8 a) { return a; }
KVANT_INLINE Acc start_acc(int32_t x) { return {{_mm512_setzero_si512()}, set1(x)}; }
struct Limbs {
  __m512i high, low;
};
KVANT_INLINE Limbs load_limbs(const std::byte* p) {
  return {broadcast_word(p), broadcast_word(p + 4)};
}
// sum += codes · the words. Spelled out, because from the intrinsics GCC 12 makes copies of the
// sums and, with four queries, spills in the kernels' inner loop. (SIMDe's build has no such
// instruction and takes the intrinsics.)
KVANT_INLINE void add_dot(I32& sum, U8 codes, __m512i words) {
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(codes.v), "v"(words));
#else
  sum.v = _mm512_dpbusd_epi32(sum.v, codes.v, words);
#endif
}
using Run = I32;
inline constexpr int kRuns = 16;
constexpr int run_quads(int) { return 1 << 20; }
KVANT_INLINE Run start_run() { return set1(int32_t{0}); }
KVANT_INLINE Run dot_signed(Run run, U8 codes, Limb limb) {
  add_dot(run, codes, limb.words);
  return run;
}
KVANT_INLINE Run dot_unsigned(Run run, U8 codes, Limb limb) {
  add_dot(run, {limb.words}, codes.v);
  return run;
}
KVANT_INLINE I32 add_run(I32 sum, Run run) { return add(sum, run); }
KVANT_INLINE Acc dot(Acc acc, Codes codes, Limbs limbs) {
  add_dot(acc.high, codes, limbs.high);
  add_dot(acc.low, codes, limbs.low);
  return acc;
}
KVANT_INLINE I32 finish(Acc acc) {
  return {_mm512_add_epi32(_mm512_slli_epi32(acc.high.v, 8), acc.low.v)};
}
// Bytes 1 and 0 of a + 128 are the high limb and, but for its upper bit, the low one.
KVANT_INLINE void store_limbs(std::byte* limbs, I32 a) {
  const __m512i both = _mm512_add_epi32(a.v, _mm512_set1_epi32(128));
  const __m512i order = _mm512_broadcast_i32x4(
      _mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m512i quads = _mm512_shuffle_epi8(both, order);
  const __m512i packed = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6), quads);
  const __m256i flip = _mm256_set1_epi64x(static_cast<int64_t>(0x8080808000000000u));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(limbs),
                      _mm256_xor_si256(_mm512_castsi512_si256(packed), flip));
}

#else

// As on AVX2: even and odd bytes as 16-bit integers.
struct Codes {
  U8 even, odd;
};
struct Acc {
  I32 even, odd;
};
KVANT_INLINE Codes split(U8 a) {
  return {{_mm512_and_si512(a.v, _mm512_set1_epi16(255))}, {_mm512_srli_epi16(a.v, 8)}};
}
KVANT_INLINE Acc start_acc(int32_t x) { return {{_mm512_setzero_si512()}, set1(x)}; }
struct Limbs {
  __m512i even, odd;
};
KVANT_INLINE Limbs load_limbs(const std::byte* p) {
  return {broadcast_word(p), broadcast_word(p + 4)};
}
KVANT_INLINE Acc dot(Acc acc, Codes codes, Limbs limbs) {
  const __m512i even = _mm512_madd_epi16(codes.even.v, limbs.even);
  const __m512i odd = _mm512_madd_epi16(codes.odd.v, limbs.odd);
  return {{_mm512_add_epi32(acc.even.v, even)}, {_mm512_add_epi32(acc.odd.v, odd)}};
}
KVANT_INLINE I32 finish(Acc acc) { return add(acc.even, acc.odd); }
struct Run {
  __m512i pairs;  // 32 sums of 16 bits
};
inline constexpr int kRuns = 16;
constexpr int run_quads(int largest) { return 32767 / (2 * largest); }
KVANT_INLINE Run start_run() { return {_mm512_setzero_si512()}; }
KVANT_INLINE Run dot_signed(Run run, U8 codes, Limb limb) {
  return {_mm512_add_epi16(run.pairs, _mm512_maddubs_epi16(codes.v, limb.words))};
}
KVANT_INLINE Run dot_unsigned(Run run, U8 codes, Limb limb) {
  return {_mm512_add_epi16(run.pairs, _mm512_maddubs_epi16(limb.words, codes.v))};
}
KVANT_INLINE I32 add_run(I32 sum, Run run) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(run.pairs, _mm512_set1_epi16(1)))};
}
KVANT_INLINE __m256i word_pairs(__m256i x) {
  return _mm256_blend_epi16(x, _mm256_slli_epi32(_mm256_shuffle_epi32(x, 0x0e), 16), 0xaa);
}
KVANT_INLINE void store_limbs(std::byte* limbs, I32 a) {
  const __m256i both = _mm256_unpacklo_epi64(word_pairs(low_half(a.v)), word_pairs(high_half(a.v)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(limbs), _mm256_permute4x64_epi64(both, 0xd8));
}

#endif

}  // namespace kvant::KVANT_ISA
