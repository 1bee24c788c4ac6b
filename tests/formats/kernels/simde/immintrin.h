// Stands in for the compiler's <immintrin.h> where the AVX-512 kernels are built to run on any CPU:
// SIMDe's portable implementations, and the conversions that SIMDe 0.7.4 lacks, by Intel's
// description of each instruction.
#pragma once

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cmath>
#include <cstdint>

#include "base/float_types.h"

namespace kvant::simde_gaps {

template <typename To, typename From>
To reinterpret(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T, int kCount>
struct Lanes {
  T at[kCount];
};

// Vector to vector, lane by lane.
template <typename Out, typename To, typename From, int kCount, typename In, typename Convert>
Out lane_by_lane(const In& in, Convert convert) {
  const auto from = reinterpret<Lanes<From, kCount>>(in);
  Lanes<To, kCount> to;
  for (int i = 0; i < kCount; ++i) to.at[i] = static_cast<To>(convert(from.at[i]));
  return reinterpret<Out>(to);
}

inline __m512i cvtps_epi32(__m512 a) {
  return lane_by_lane<__m512i, int32_t, float, 16>(a, [](float x) { return std::lrint(x); });
}
inline __m512 cvtepi32_ps(__m512i a) {
  return lane_by_lane<__m512, float, int32_t, 16>(a,
                                                  [](int32_t x) { return static_cast<float>(x); });
}
inline __m512i cvtepu16_epi32(__m256i a) {
  return lane_by_lane<__m512i, uint32_t, uint16_t, 16>(a, [](uint16_t x) { return x; });
}
inline __m512 cvtph_ps(__m256i a) {
  return lane_by_lane<__m512, float, uint16_t, 16>(a, [](uint16_t x) { return f16_to_f32(x); });
}

inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {  // SIMDe's rounds twice
  const auto x = reinterpret<Lanes<float, 16>>(a);
  const auto y = reinterpret<Lanes<float, 16>>(b);
  auto z = reinterpret<Lanes<float, 16>>(c);
  for (int i = 0; i < 16; ++i) z.at[i] = std::fma(x.at[i], y.at[i], z.at[i]);
  return reinterpret<__m512>(z);
}

}  // namespace kvant::simde_gaps

#define _mm512_cvtps_epi32 kvant::simde_gaps::cvtps_epi32
#define _mm512_cvtepi32_ps kvant::simde_gaps::cvtepi32_ps
#define _mm512_cvtepu16_epi32 kvant::simde_gaps::cvtepu16_epi32
#define _mm512_cvtph_ps kvant::simde_gaps::cvtph_ps

// Names that SIMDe has but doesn't alias, or aliases wrongly.
#define __mmask16 simde__mmask16
#define _mm512_shuffle_f32x4 simde_mm512_shuffle_f32x4
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 simde_mm512_madd_epi16
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps kvant::simde_gaps::fmadd_ps
