// The vector vocabulary on AArch64 NEON, with the 8-bit dot products where the compiler's flags
// have them. What the operations mean is said in simd/avx2.h; four registers hold what takes two
// there.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "simd/inline.h"

namespace kvant::KVANT_ISA {

struct F32 {
  float32x4_t v[4];
};
struct I32 {
  int32x4_t v[4];
};
struct U8 {
  uint8x16_t v[4];
};

// Applies `op` to each of the four registers of one, two or three operands.
template <typename Out, typename Op, typename... In>
KVANT_INLINE Out each(Op op, const In&... in) {
  return {{op(in.v[0]...), op(in.v[1]...), op(in.v[2]...), op(in.v[3]...)}};
}

KVANT_INLINE F32 set1(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
KVANT_INLINE F32 zero() { return set1(0.0f); }
KVANT_INLINE F32 load(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
KVANT_INLINE void store(float* p, F32 a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
KVANT_INLINE F32 add(F32 a, F32 b) {
  return each<F32>([](auto x, auto y) { return vaddq_f32(x, y); }, a, b);
}
KVANT_INLINE F32 sub(F32 a, F32 b) {
  return each<F32>([](auto x, auto y) { return vsubq_f32(x, y); }, a, b);
}
KVANT_INLINE F32 mul(F32 a, F32 b) {
  return each<F32>([](auto x, auto y) { return vmulq_f32(x, y); }, a, b);
}
KVANT_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return each<F32>([](auto x, auto y, auto z) { return vfmaq_f32(z, x, y); }, a, b, c);
}
KVANT_INLINE F32 max(F32 a, F32 b) {
  return each<F32>([](auto x, auto y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }, a, b);
}
KVANT_INLINE F32 abs(F32 a) {
  return each<F32>([](auto x) { return vabsq_f32(x); }, a);
}
KVANT_INLINE F32 zero_below(F32 x, float bound, F32 value) {
  const float32x4_t b = vdupq_n_f32(bound);
  const float32x4_t none = vdupq_n_f32(0.0f);
  return each<F32>([&](auto at, auto kept) { return vbslq_f32(vcltq_f32(at, b), none, kept); }, x,
                   value);
}
KVANT_INLINE F32 keep_first(F32 a, int n, float fill) {
  const int32_t index[4] = {0, 1, 2, 3};
  const float32x4_t filled = vdupq_n_f32(fill);
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t kept = vcltq_s32(vld1q_s32(index), vdupq_n_s32(n - 4 * i));
    a.v[i] = vbslq_f32(kept, a.v[i], filled);
  }
  return a;
}

KVANT_INLINE float reduce_add(F32 a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
KVANT_INLINE float reduce_max(F32 a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}

KVANT_INLINE I32 set1(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {{v, v, v, v}};
}
KVANT_INLINE I32 add(I32 a, I32 b) {
  return each<I32>([](auto x, auto y) { return vaddq_s32(x, y); }, a, b);
}
KVANT_INLINE I32 sub(I32 a, I32 b) {
  return each<I32>([](auto x, auto y) { return vsubq_s32(x, y); }, a, b);
}
KVANT_INLINE int32_t reduce_add(I32 a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
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
KVANT_INLINE I32 round(F32 a) {
  return each<I32>([](auto x) { return vcvtnq_s32_f32(x); }, a);
}
KVANT_INLINE F32 to_float(I32 a) {
  return each<F32>([](auto x) { return vcvtq_f32_s32(x); }, a);
}
KVANT_INLINE F32 power_of_two(I32 n) {
  return each<F32>(
      [](auto x) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(x, vdupq_n_s32(127)), 23)); },
      n);
}

KVANT_INLINE F32 from_f16(uint16x8_t low, uint16x8_t high) {
  const float16x8_t a = vreinterpretq_f16_u16(low);
  const float16x8_t b = vreinterpretq_f16_u16(high);
  return {{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)),
           vcvt_high_f32_f16(b)}};
}
KVANT_INLINE uint16x8_t load_words(const void* p) {
  return vreinterpretq_u16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
}
KVANT_INLINE F32 load_f16(const void* p) {
  return from_f16(load_words(p), load_words(static_cast<const uint8_t*>(p) + 16));
}
KVANT_INLINE F32 load_bf16(const void* p) {
  const uint16x8_t a = load_words(p);
  const uint16x8_t b = load_words(static_cast<const uint8_t*>(p) + 16);
  return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(a), 16)),
           vreinterpretq_f32_u32(vshll_high_n_u16(a, 16)),
           vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(b), 16)),
           vreinterpretq_f32_u32(vshll_high_n_u16(b, 16))}};
}
// See simd/avx2.h for the bits.
KVANT_INLINE uint16x8_t e4m3_half(int8x8_t bytes) {
  const uint16x8_t shifted = vreinterpretq_u16_s16(vshll_n_s8(bytes, 7));
  const uint16x8_t half = vandq_u16(shifted, vdupq_n_u16(0xbf80));
  const uint16x8_t nan = vceqq_u16(vorrq_u16(shifted, vdupq_n_u16(0xc000)), vdupq_n_u16(0xff80));
  return vorrq_u16(half, nan);
}
KVANT_INLINE F32 load_e4m3(const void* p) {
  const int8x16_t bytes = vld1q_s8(static_cast<const int8_t*>(p));
  return mul(from_f16(e4m3_half(vget_low_s8(bytes)), e4m3_half(vget_high_s8(bytes))), set1(256.0f));
}
KVANT_INLINE F32 load_e5m2(const void* p) {
  const uint8x16_t bytes = vld1q_u8(static_cast<const uint8_t*>(p));
  return from_f16(vshll_n_u8(vget_low_u8(bytes), 8), vshll_high_n_u8(bytes, 8));
}

template <int kHalf>
KVANT_INLINE F32 butterfly(F32 a) {
  if constexpr (kHalf == 8) {
    return {{vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]), vsubq_f32(a.v[0], a.v[2]),
             vsubq_f32(a.v[1], a.v[3])}};
  } else if constexpr (kHalf == 4) {
    return {{vaddq_f32(a.v[0], a.v[1]), vsubq_f32(a.v[0], a.v[1]), vaddq_f32(a.v[2], a.v[3]),
             vsubq_f32(a.v[2], a.v[3])}};
  } else {
    const uint32_t upper[4] = {0, kHalf == 1 ? ~0u : 0, kHalf == 2 ? ~0u : 0, ~0u};
    const uint32x4_t mask = vld1q_u32(upper);
    return each<F32>(
        [&](auto x) {
          const float32x4_t other = kHalf == 2 ? vextq_f32(x, x, 2) : vrev64q_f32(x);
          return vbslq_f32(mask, vsubq_f32(other, x), vaddq_f32(other, x));
        },
        a);
  }
}

KVANT_INLINE U8 load_bytes(const uint8_t* p) {
  return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}
KVANT_INLINE void store_bytes(uint8_t* p, U8 a) {
  for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, a.v[i]);
}
KVANT_INLINE U8 bit_or(U8 a, U8 b) {
  return each<U8>([](auto x, auto y) { return vorrq_u8(x, y); }, a, b);
}
template <int kShift, int kWidth>
KVANT_INLINE U8 field(U8 a) {
  return each<U8>(
      [](auto x) {
        return vandq_u8(vshlq_u8(x, vdupq_n_s8(-kShift)),
                        vdupq_n_u8(static_cast<uint8_t>((1 << kWidth) - 1)));
      },
      a);
}
KVANT_INLINE U8 shift_left(U8 a, int n) {
  const int8x16_t count = vdupq_n_s8(static_cast<int8_t>(n));
  return each<U8>([&](auto x) { return vshlq_u8(x, count); }, a);
}

KVANT_INLINE U8 look_up(U8 table, U8 places) {
  return each<U8>([](auto t, auto x) { return vqtbl1q_u8(t, x); }, table, places);
}

KVANT_INLINE int8x16_t low_bytes(I32 a) {
  const int16x8_t first = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
  const int16x8_t second = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
  return vcombine_s8(vmovn_s16(first), vmovn_s16(second));
}

struct Limb {
  int8x16_t words;
};
KVANT_INLINE Limb load_limb(const std::byte* p) {
  return {vreinterpretq_s8_s32(vld1q_dup_s32(reinterpret_cast<const int32_t*>(p)))};
}
KVANT_INLINE void store_low_bytes(std::byte* limbs, I32 a) {
  vst1q_s8(reinterpret_cast<int8_t*>(limbs), low_bytes(a));
}
KVANT_INLINE I32 high_limb(I32 a) {
  return each<I32>([](auto x) { return vshrq_n_s32(vaddq_s32(x, vdupq_n_s32(128)), 8); }, a);
}
KVANT_INLINE I32 times_256(I32 a) {
  return each<I32>([](auto x) { return vshlq_n_s32(x, 8); }, a);
}

#if defined(__ARM_FEATURE_DOTPROD)

// Signed codes (the unsigned ones minus 128) times both signed limbs of 256·high + low, summed
// apart. Four
// high limbs come before four low ones.
inline constexpr int32_t kCodeBias = 128;
inline constexpr bool kNeedsDotProducts = true;
inline constexpr int kAccumulators = 4;
struct Codes {
  int8x16_t v[4];
};
struct Acc {
  I32 high, low;
};
KVANT_INLINE Codes split(U8 a) {
  return each<Codes>([](auto x) { return vreinterpretq_s8_u8(veorq_u8(x, vdupq_n_u8(0x80))); }, a);
}
KVANT_INLINE Acc start_acc(int32_t x) { return {set1(int32_t{0}), set1(x)}; }
using Limbs = int8x8_t;
KVANT_INLINE Limbs load_limbs(const std::byte* p) {
  return vld1_s8(reinterpret_cast<const int8_t*>(p));
}
KVANT_INLINE Acc dot(Acc acc, Codes codes, Limbs both) {
  for (int i = 0; i < 4; ++i) {
    acc.high.v[i] = vdotq_lane_s32(acc.high.v[i], codes.v[i], both, 0);
    acc.low.v[i] = vdotq_lane_s32(acc.low.v[i], codes.v[i], both, 1);
  }
  return acc;
}
KVANT_INLINE I32 finish(Acc acc) {
  return each<I32>([](auto h, auto l) { return vaddq_s32(vshlq_n_s32(h, 8), l); }, acc.high,
                   acc.low);
}
using Run = I32;
inline constexpr int kRuns = 4;
constexpr int run_quads(int) { return 1 << 20; }
KVANT_INLINE Run start_run() { return set1(int32_t{0}); }
KVANT_INLINE Run dot_signed(Run run, U8 codes, Limb limb) {
  for (int i = 0; i < 4; ++i)
    run.v[i] = vdotq_s32(run.v[i], vreinterpretq_s8_u8(codes.v[i]), limb.words);
  return run;
}
KVANT_INLINE Run dot_unsigned(Run run, U8 codes, Limb limb) {
  for (int i = 0; i < 4; ++i) {
    run.v[i] = vreinterpretq_s32_u32(
        vdotq_u32(vreinterpretq_u32_s32(run.v[i]), codes.v[i], vreinterpretq_u8_s8(limb.words)));
  }
  return run;
}
KVANT_INLINE I32 add_run(I32 sum, Run run) { return add(sum, run); }
KVANT_INLINE void store_limbs(std::byte* limbs, I32 a) {
  const int32x4_t h = vreinterpretq_s32_s8(low_bytes(high_limb(a)));
  const int32x4_t l = vreinterpretq_s32_s8(low_bytes(a));
  vst1q_s32(reinterpret_cast<int32_t*>(limbs), vzip1q_s32(h, l));
  vst1q_s32(reinterpret_cast<int32_t*>(limbs + 16), vzip2q_s32(h, l));
}

#else

// Without them: even and odd bytes as 16-bit integers times the pairs (0, 2) and (1, 3), the two
// products of a pair summed in neighbouring lanes until finish() adds them.
inline constexpr int32_t kCodeBias = 0;
inline constexpr bool kNeedsDotProducts = false;
inline constexpr int kAccumulators = 4;
struct Codes {
  int16x8_t even[4], odd[4];
};
struct Acc {
  int32x4_t low[4], high[4];
};
KVANT_INLINE Codes split(U8 a) {
  Codes codes;
  for (int i = 0; i < 4; ++i) {
    const uint16x8_t words = vreinterpretq_u16_u8(a.v[i]);
    codes.even[i] = vreinterpretq_s16_u16(vandq_u16(words, vdupq_n_u16(0xff)));
    codes.odd[i] = vreinterpretq_s16_u16(vshrq_n_u16(words, 8));
  }
  return codes;
}
KVANT_INLINE Acc start_acc(int32_t x) {
  // Of each pair of lanes that finish() adds, the first.
  const int32x4_t first = vreinterpretq_s32_u64(vdupq_n_u64(static_cast<uint32_t>(x)));
  Acc acc;
  for (int i = 0; i < 4; ++i) acc.low[i] = acc.high[i] = first;
  return acc;
}
KVANT_INLINE int16x8_t broadcast_pair(const std::byte* p) {
  return vreinterpretq_s16_s32(vld1q_dup_s32(reinterpret_cast<const int32_t*>(p)));
}
struct Limbs {
  int16x8_t even, odd;
};
KVANT_INLINE Limbs load_limbs(const std::byte* p) {
  return {broadcast_pair(p), broadcast_pair(p + 4)};
}
KVANT_INLINE Acc dot(Acc acc, Codes codes, Limbs limbs) {
  const auto [even, odd] = limbs;
  for (int i = 0; i < 4; ++i) {
    acc.low[i] = vmlal_s16(acc.low[i], vget_low_s16(codes.even[i]), vget_low_s16(even));
    acc.high[i] = vmlal_high_s16(acc.high[i], codes.even[i], even);
    acc.low[i] = vmlal_s16(acc.low[i], vget_low_s16(codes.odd[i]), vget_low_s16(odd));
    acc.high[i] = vmlal_high_s16(acc.high[i], codes.odd[i], odd);
  }
  return acc;
}
KVANT_INLINE I32 finish(Acc acc) {
  I32 sum;
  for (int i = 0; i < 4; ++i) sum.v[i] = vpaddq_s32(acc.low[i], acc.high[i]);
  return sum;
}
// Products of neighbours, summed in runs of so many quads that none can leave 16 bits.
struct Run {
  int16x8_t v[4];
};
inline constexpr int kRuns = 4;
constexpr int run_quads(int largest) { return 32767 / (2 * largest); }
KVANT_INLINE Run start_run() {
  const int16x8_t none = vdupq_n_s16(0);
  return {{none, none, none, none}};
}
KVANT_INLINE Run dot_signed(Run run, U8 codes, Limb limb) {
  for (int i = 0; i < 4; ++i) {
    const int8x16_t c = vreinterpretq_s8_u8(codes.v[i]);
    const int16x8_t low = vmull_s8(vget_low_s8(c), vget_low_s8(limb.words));
    run.v[i] = vaddq_s16(run.v[i], vpaddq_s16(low, vmull_high_s8(c, limb.words)));
  }
  return run;
}
KVANT_INLINE Run dot_unsigned(Run run, U8 codes, Limb limb) {
  const uint8x16_t words = vreinterpretq_u8_s8(limb.words);
  for (int i = 0; i < 4; ++i) {
    const uint16x8_t low = vmull_u8(vget_low_u8(codes.v[i]), vget_low_u8(words));
    const uint16x8_t pairs = vpaddq_u16(low, vmull_high_u8(codes.v[i], words));
    run.v[i] = vaddq_s16(run.v[i], vreinterpretq_s16_u16(pairs));
  }
  return run;
}
KVANT_INLINE I32 add_run(I32 sum, Run run) {
  for (int i = 0; i < 4; ++i) sum.v[i] = vpadalq_s16(sum.v[i], run.v[i]);
  return sum;
}
KVANT_INLINE void store_limbs(std::byte* limbs, I32 a) {
  for (int i = 0; i < 4; ++i) {  // quad i: words 0, 2, 1, 3
    const int16x4_t words = vmovn_s32(a.v[i]);
    const int16x4_t pairs = vuzp1_s16(words, words);   // 0 2 0 2
    const int16x4_t others = vuzp2_s16(words, words);  // 1 3 1 3
    const int32x2_t both = vzip1_s32(vreinterpret_s32_s16(pairs), vreinterpret_s32_s16(others));
    vst1_s32(reinterpret_cast<int32_t*>(limbs + 8 * i), both);
  }
}

#endif

}  // namespace kvant::KVANT_ISA
