// The page kernels, written once over a vector vocabulary. Each per-ISA source defines KVANT_ISA (a
// namespace), KVANT_VOCABULARY (the vocabulary's header), KVANT_ISA_NAME and KVANT_ISA_VALUE, and
// then includes this file, which fills kvant::KVANT_ISA::kTable.
//
// kernels/scalar.cc says what is computed and in which order; here queries are taken four at a
// time, so that one load and one unpacking of the codes serves them all, and a page of codes (or
// its unpacked form) stays in the first-level cache over all blocks of queries. Nothing a query
// computes depends on its place in a block.
#include <cstddef>
#include <cstdint>

#include "formats/kernels/numerics.h"
#include "formats/page_kernels.h"
#include "simd/inline.h"
#include KVANT_VOCABULARY

namespace kvant::KVANT_ISA {
namespace {

constexpr int kTokens = 64;
constexpr int kLanes = 16;
constexpr int kMaxGroups = kMaxIntDim / kLanes;
constexpr float kInfinity = __builtin_inff();

template <int kCount>
struct Block {
  static constexpr int kQueries = kCount;
};

// run(Block<4>{}, first) for as many whole blocks as there are, then one smaller block.
template <typename Run>
KVANT_INLINE void for_query_blocks(int num_queries, Run run) {
  int first = 0;
  for (; first + 4 <= num_queries; first += 4) run(Block<4>{}, first);
  const int rest = num_queries - first;
  if (rest == 3) run(Block<3>{}, first);
  if (rest == 2) run(Block<2>{}, first);
  if (rest == 1) run(Block<1>{}, first);
}

// --- Integer pages
// ----------------------------------------------------------------------------------------------------

template <int kWidth, int kSlot = 0>
KVANT_INLINE void unpack_vector(U8 v, int quad, int step, int num_quads, int low_bit,
                                uint8_t* tile) {
  if (quad >= num_quads) return;
  uint8_t* out = tile + 64 * quad;
  const U8 bits = field<kWidth * kSlot, kWidth>(v);
  store_bytes(out, low_bit == 0 ? bits : bit_or(load_bytes(out), shift_left(bits, low_bit)));
  if constexpr ((kSlot + 1) * kWidth < 8) {
    unpack_vector<kWidth, kSlot + 1>(v, quad + step, step, num_quads, low_bit, tile);
  }
}

template <int kWidth>
const uint8_t* unpack_plane(const uint8_t* codes, int num_groups, int num_quads, int low_bit,
                            uint8_t* tiles) {
  const int nv = plane_vectors(kWidth, num_quads);
  for (int group = 0; group < num_groups; ++group, tiles += 64 * num_quads) {
    for (int j = 0; j < nv; ++j, codes += 64) {
      unpack_vector<kWidth>(load_bytes(codes), j, nv, num_quads, low_bit, tiles);
    }
  }
  return codes;
}

// The page as 8-bit codes, [group][quad] vectors of 64 bytes: its own bytes, or unpacked into
// `buffer`.
const uint8_t* unpack(const IntPage& page, int num_groups, int num_quads, uint8_t* buffer) {
  if (page.bits == 8) return page.codes;
  const Planes planes = planes_of(page.bits);
  const uint8_t* codes = page.codes;
  for (int p = 0, low_bit = 0; p < planes.count; low_bit += planes.width[p++]) {
    const int width = planes.width[p];
    if (width == 4) codes = unpack_plane<4>(codes, num_groups, num_quads, low_bit, buffer);
    if (width == 2) codes = unpack_plane<2>(codes, num_groups, num_quads, low_bit, buffer);
    if (width == 1) codes = unpack_plane<1>(codes, num_groups, num_quads, low_bit, buffer);
  }
  return buffer;
}

// n halves (a multiple of 16) as floats; zeros where there are none, and n copies where `one` value
// serves all.
void widen(const uint16_t* halves, int n, bool one, float* out) {
  for (int i = 0; i < n; i += kLanes) {
    F32 x = zero();
    if (halves != nullptr && one) {
      uint16_t copies[kLanes];
      for (uint16_t& copy : copies) copy = *halves;
      x = load_f16(copies);
    } else if (halves != nullptr) {
      x = load_f16(halves + i);
    }
    store(out + i, x);
  }
}

// Quantizes n floats (a multiple of 16) into limbs; `sum` is left to the caller.
KVANT_INLINE QuantizedRow quantize(const float* x, int n, std::byte* limbs) {
  F32 magnitude = zero();
  for (int i = 0; i < n; i += kLanes) magnitude = max(abs(load(x + i)), magnitude);
  const float largest = reduce_max(magnitude);
  const float to_int = largest < kTinyMax ? 0.0f : kLimbMax / largest;
  I32 sum = set1(int32_t{0});
  for (int i = 0; i < n; i += kLanes) {
    const I32 v = round(mul(load(x + i), set1(to_int)));
    store_limbs(limbs + 2 * i, v);
    sum = add(sum, v);
  }
  return {.scale = largest < kTinyMax ? 0.0f : largest / kLimbMax,
          .sum = 0,
          .int_sum = reduce_add(sum),
          .reserved = 0};
}

KVANT_INLINE float sum_of(const float* x, int n) {
  F32 lanes = zero();
  for (int i = 0; i < n; i += kLanes) lanes = add(lanes, load(x + i));
  return reduce_add(lanes);
}

KVANT_INLINE float dot_of(const float* x, const float* y, int n) {
  F32 lanes = zero();
  for (int i = 0; i < n; i += kLanes) lanes = fma(load(x + i), load(y + i), lanes);
  return reduce_add(lanes);
}

// Dot products of one tile (num_quads vectors, a multiple of 4) with kQueries rows of limbs,
// `stride` bytes apart.
template <int kQueries>
KVANT_INLINE void dot_tile(const uint8_t* tile, int num_quads, const std::byte* limbs,
                           size_t stride, Acc (&acc)[kQueries]) {
  for (Acc& a : acc) a = zero_acc();
  for (int quad = 0; quad < num_quads; quad += 4, tile += 256, limbs += 32) {
    for (int j = 0; j < 4; ++j) {
      const Codes codes = split(load_bytes(tile + 64 * j));
      for (int i = 0; i < kQueries; ++i)
        acc[i] = dot(acc[i], codes, limbs + static_cast<size_t>(i) * stride, j);
    }
  }
}

// scale · (the integer sum with the codes' offset taken out).
KVANT_INLINE F32 scaled(Acc acc, const QuantizedRow& row, int offset) {
  const uint32_t bias =
      static_cast<uint32_t>(offset - kCodeBias) * static_cast<uint32_t>(row.int_sum);
  return mul(set1(row.scale), to_float(sub(finish(acc), set1(static_cast<int32_t>(bias)))));
}

size_t int_query_bytes(int num_queries, int dim, int num_groups, ScaleLayout layout) {
  return static_cast<size_t>(num_queries) *
         query_record_bytes(dim, num_groups, layout == ScaleLayout::kChannel);
}

void int_prepare_query(const float* queries, int num_queries, int dim, int num_groups,
                       ScaleLayout layout, std::byte* prepared) {
  const size_t record = int_query_bytes(1, dim, num_groups, layout);
  const int width = dim / num_groups;
  for (int i = 0; i < num_queries; ++i, queries += dim, prepared += record) {
    if (layout == ScaleLayout::kChannel) {
      __builtin_memcpy(prepared, queries, static_cast<size_t>(dim) * sizeof(float));
      continue;
    }
    auto* rows = reinterpret_cast<QuantizedRow*>(prepared + 2 * dim);
    for (int g = 0; g < num_groups; ++g) {
      rows[g] = quantize(queries + g * width, width, prepared + 2 * g * width);
      rows[g].sum = sum_of(queries + g * width, width);
    }
  }
}

// A page ready for the loops over queries.
struct OpenPage {
  const uint8_t* tiles;
  int dim;
  int num_groups;
  int offset;
  const float* scale;
  const float* zero;
};

template <int kQueries>
KVANT_INLINE void token_scores(const OpenPage& page, const std::byte* prepared, size_t record,
                               float* scores, size_t stride) {
  const int width = page.dim / page.num_groups;
  for (int tg = 0; tg < kTokens / kLanes; ++tg) {
    F32 score[kQueries];
    for (F32& s : score) s = zero();
    for (int g = 0; g < page.num_groups; ++g) {
      Acc acc[kQueries];
      dot_tile<kQueries>(page.tiles + 16 * (tg * page.dim + g * width), width / 4,
                         prepared + 2 * g * width, record, acc);
      const int at = g * kTokens + tg * kLanes;
      for (size_t i = 0; i < kQueries; ++i) {
        const auto& row =
            reinterpret_cast<const QuantizedRow*>(prepared + i * record + 2 * page.dim)[g];
        score[i] = fma(load(page.scale + at), scaled(acc[i], row, page.offset), score[i]);
        score[i] = fma(load(page.zero + at), set1(row.sum), score[i]);
      }
    }
    for (size_t i = 0; i < kQueries; ++i) store(scores + i * stride + tg * kLanes, score[i]);
  }
}

template <int kQueries>
KVANT_INLINE void channel_scores(const OpenPage& page, const std::byte* prepared, size_t record,
                                 float* scores, size_t stride) {
  alignas(64) std::byte limbs[kQueries][2 * kMaxIntDim];
  alignas(64) float scaled_query[kMaxIntDim];
  QuantizedRow rows[kQueries];
  for (size_t i = 0; i < kQueries; ++i) {
    const auto* q = reinterpret_cast<const float*>(prepared + i * record);
    for (int k = 0; k < page.dim; k += kLanes)
      store(scaled_query + k, mul(load(q + k), load(page.scale + k)));
    rows[i] = quantize(scaled_query, page.dim, limbs[i]);
    rows[i].sum = dot_of(q, page.zero, page.dim);
  }
  for (int tg = 0; tg < kTokens / kLanes; ++tg) {
    Acc acc[kQueries];
    dot_tile<kQueries>(page.tiles + 16 * tg * page.dim, page.dim / 4, limbs[0], sizeof(limbs[0]),
                       acc);
    for (size_t i = 0; i < kQueries; ++i) {
      store(scores + i * stride + tg * kLanes,
            add(scaled(acc[i], rows[i], page.offset), set1(rows[i].sum)));
    }
  }
}

void int_key_scores(const IntPage& page, const std::byte* prepared, int num_queries, float* scores,
                    size_t stride) {
  alignas(64) uint8_t buffer[kTokens * kMaxIntDim];
  alignas(64) float scale[kTokens * kMaxGroups];
  alignas(64) float zeros[kTokens * kMaxGroups];
  const bool per_channel = page.layout == ScaleLayout::kChannel;
  const int count = per_channel ? page.dim : kTokens * page.num_groups;
  widen(page.scale, count, page.layout == ScaleLayout::kPage, scale);
  widen(page.zero, count, page.layout == ScaleLayout::kPage, zeros);
  const uint8_t* tiles = unpack(page, kTokens / kLanes, page.dim / 4, buffer);
  const OpenPage open = {tiles, page.dim, page.num_groups, page.offset, scale, zeros};
  const size_t record = int_query_bytes(1, page.dim, page.num_groups, page.layout);
  for_query_blocks(
      num_queries, [&](auto block, int first) __attribute__((always_inline)) {
        const size_t i = static_cast<size_t>(first);
        if (per_channel) {
          channel_scores<block.kQueries>(open, prepared + i * record, record, scores + i * stride,
                                         stride);
        } else {
          token_scores<block.kQueries>(open, prepared + i * record, record, scores + i * stride,
                                       stride);
        }
      });
}

// Weights of one query for channels of one group: p∘scale quantized, and what the zero points add.
KVANT_INLINE QuantizedRow value_weights(const OpenPage& page, bool per_channel, int group,
                                        const float* p, std::byte* limbs) {
  if (per_channel) {
    QuantizedRow row = quantize(p, kTokens, limbs);
    row.sum = sum_of(p, kTokens);
    return row;
  }
  alignas(64) float weights[kTokens];
  const int at = group * kTokens;
  for (int t = 0; t < kTokens; t += kLanes)
    store(weights + t, mul(load(p + t), load(page.scale + at + t)));
  QuantizedRow row = quantize(weights, kTokens, limbs);
  row.sum = dot_of(p, page.zero + at, kTokens);
  return row;
}

template <int kQueries>
KVANT_INLINE void accumulate_values(const OpenPage& page, bool per_channel, const float* p,
                                    size_t stride_p, float* acc, size_t stride_acc) {
  alignas(64) std::byte limbs[kQueries][2 * kTokens];
  QuantizedRow rows[kQueries];
  const int width = page.dim / page.num_groups;
  for (int g = 0; g < page.num_groups; ++g) {
    for (size_t i = 0; i < kQueries; ++i) {
      rows[i] = value_weights(page, per_channel, g, p + i * stride_p, limbs[i]);
    }
    for (int c = g * width; c < (g + 1) * width; c += kLanes) {
      Acc sums[kQueries];
      dot_tile<kQueries>(page.tiles + kTokens * c, kTokens / 4, limbs[0], sizeof(limbs[0]), sums);
      for (size_t i = 0; i < kQueries; ++i) {
        const F32 x = scaled(sums[i], rows[i], page.offset);
        const F32 constant = set1(rows[i].sum);
        const F32 y = per_channel ? fma(load(page.scale + c), x, mul(load(page.zero + c), constant))
                                  : add(x, constant);
        float* out = acc + i * stride_acc + c;
        store(out, add(load(out), y));
      }
    }
  }
}

void int_value_accumulate(const IntPage& page, const float* p, size_t stride_p, int num_queries,
                          float* acc, size_t stride_acc) {
  alignas(64) uint8_t buffer[kTokens * kMaxIntDim];
  alignas(64) float scale[kTokens * kMaxGroups];
  alignas(64) float zeros[kTokens * kMaxGroups];
  const bool per_channel = page.layout == ScaleLayout::kChannel;
  const int num_groups = per_channel ? 1 : page.num_groups;
  const int count = per_channel ? page.dim : kTokens * num_groups;
  widen(page.scale, count, page.layout == ScaleLayout::kPage, scale);
  widen(page.zero, count, page.layout == ScaleLayout::kPage, zeros);
  const uint8_t* tiles = unpack(page, page.dim / kLanes, kTokens / 4, buffer);
  const OpenPage open = {tiles, page.dim, num_groups, page.offset, scale, zeros};
  for_query_blocks(
      num_queries, [&](auto block, int first) __attribute__((always_inline)) {
        const size_t i = static_cast<size_t>(first);
        accumulate_values<block.kQueries>(open, per_channel, p + i * stride_p, stride_p,
                                          acc + i * stride_acc, stride_acc);
      });
}

// --- Float pages
// ------------------------------------------------------------------------------------------------------

template <FloatType kType>
KVANT_INLINE F32 load_as(const std::byte* p) {
  if constexpr (kType == FloatType::kF16) return load_f16(p);
  if constexpr (kType == FloatType::kBf16) return load_bf16(p);
  if constexpr (kType == FloatType::kE4m3) return load_e4m3(p);
  if constexpr (kType == FloatType::kE5m2) return load_e5m2(p);
  if constexpr (kType == FloatType::kF32) return load(reinterpret_cast<const float*>(p));
}

template <FloatType kType>
constexpr size_t kBytesOf = kType == FloatType::kF32
                                ? 4
                                : (kType == FloatType::kF16 || kType == FloatType::kBf16 ? 2 : 1);

// Scales of the 64 tokens; ones where there are none.
void token_scales(const FloatPage& page, float* out) {
  if (page.scale != nullptr)
    return widen(page.scale, kTokens, page.layout == ScaleLayout::kPage, out);
  for (int t = 0; t < kTokens; t += kLanes) store(out + t, set1(1.0f));
}

template <FloatType kType>
void float_key_scores_as(const FloatPage& page, const float* queries, int num_queries,
                         float* scores, size_t stride) {
  alignas(64) float scale[kTokens];
  token_scales(page, scale);
  const size_t dim = static_cast<size_t>(page.dim);
  for_query_blocks(
      num_queries, [&](auto block, int first) __attribute__((always_inline)) {
        constexpr size_t kQueries = block.kQueries;
        const float* q = queries + static_cast<size_t>(first) * dim;
        float* out = scores + static_cast<size_t>(first) * stride;
        for (int t = 0; t < kTokens; t += kLanes) {
          F32 sum[kQueries];
          for (F32& s : sum) s = zero();
          const std::byte* k = page.data + kBytesOf<kType> * static_cast<size_t>(t);
          const size_t rows = t < page.num_tokens ? dim : 0;
          for (size_t d = 0; d < rows; ++d, k += kBytesOf<kType> * kTokens) {
            const F32 x = load_as<kType>(k);
            for (size_t i = 0; i < kQueries; ++i) sum[i] = fma(set1(q[i * dim + d]), x, sum[i]);
          }
          for (size_t i = 0; i < kQueries; ++i) {
            store(out + i * stride + t,
                  keep_first(mul(sum[i], load(scale + t)), page.num_tokens - t, -kInfinity));
          }
        }
      });
}

// weights[i][t] = p·scale for kQueries queries; 0 behind the page's last token.
template <size_t kQueries>
KVANT_INLINE void float_weights(const FloatPage& page, const float* scale, const float* p,
                                size_t stride_p, float (&weights)[kQueries][kTokens]) {
  for (size_t i = 0; i < kQueries; ++i) {
    for (int t = 0; t < kTokens; t += kLanes) {
      const F32 w = mul(load(p + i * stride_p + t), load(scale + t));
      store(weights[i] + t, keep_first(w, page.num_tokens - t, 0.0f));
    }
  }
}

template <FloatType kType>
void float_value_accumulate_as(const FloatPage& page, const float* p, size_t stride_p,
                               int num_queries, float* acc, size_t stride_acc) {
  alignas(64) float scale[kTokens];
  token_scales(page, scale);
  const size_t row_bytes = kBytesOf<kType> * static_cast<size_t>(page.dim);
  for_query_blocks(
      num_queries, [&](auto block, int first) __attribute__((always_inline)) {
        constexpr size_t kQueries = block.kQueries;
        alignas(64) float weights[kQueries][kTokens];
        float_weights(page, scale, p + static_cast<size_t>(first) * stride_p, stride_p, weights);
        float* out = acc + static_cast<size_t>(first) * stride_acc;
        for (int c = 0; c < page.dim; c += kLanes, out += kLanes) {
          F32 sum[kQueries];
          for (size_t i = 0; i < kQueries; ++i) sum[i] = load(out + i * stride_acc);
          const std::byte* v = page.data + kBytesOf<kType> * static_cast<size_t>(c);
          for (int t = 0; t < page.num_tokens; ++t, v += row_bytes) {
            const F32 x = load_as<kType>(v);
            for (size_t i = 0; i < kQueries; ++i) sum[i] = fma(set1(weights[i][t]), x, sum[i]);
          }
          for (size_t i = 0; i < kQueries; ++i) store(out + i * stride_acc, sum[i]);
        }
      });
}

template <FloatType kType>
void float_value_from_key_as(const FloatPage& page, int first_channel, int count, const float* p,
                             size_t stride_p, int num_queries, float* acc, size_t stride_acc) {
  alignas(64) float scale[kTokens];
  token_scales(page, scale);
  const std::byte* rows =
      page.data + kBytesOf<kType> * kTokens * static_cast<size_t>(first_channel);
  for_query_blocks(
      num_queries, [&](auto block, int first) __attribute__((always_inline)) {
        constexpr size_t kQueries = block.kQueries;
        alignas(64) float weights[kQueries][kTokens];
        float_weights(page, scale, p + static_cast<size_t>(first) * stride_p, stride_p, weights);
        float* out = acc + static_cast<size_t>(first) * stride_acc;
        const std::byte* k = rows;
        for (int c = 0; c < count; ++c, k += kBytesOf<kType> * kTokens) {
          F32 lanes[kQueries];
          for (F32& l : lanes) l = zero();
          for (int t = 0; t < kTokens; t += kLanes) {
            const F32 x = keep_first(load_as<kType>(k + kBytesOf<kType> * static_cast<size_t>(t)),
                                     page.num_tokens - t, 0.0f);
            for (size_t i = 0; i < kQueries; ++i) lanes[i] = fma(load(weights[i] + t), x, lanes[i]);
          }
          for (size_t i = 0; i < kQueries; ++i)
            out[i * stride_acc + static_cast<size_t>(c)] += reduce_add(lanes[i]);
        }
      });
}

// One instance per FloatType, in its order.
#define KVANT_FOR_FLOAT_TYPES(f)                                                      \
  {                                                                                   \
    f<FloatType::kF32>, f<FloatType::kF16>, f<FloatType::kBf16>, f<FloatType::kE4m3>, \
        f<FloatType::kE5m2>                                                           \
  }

void float_key_scores(const FloatPage& page, const float* queries, int num_queries, float* scores,
                      size_t stride) {
  constexpr decltype(&float_key_scores) kByType[] = KVANT_FOR_FLOAT_TYPES(float_key_scores_as);
  kByType[static_cast<size_t>(page.type)](page, queries, num_queries, scores, stride);
}

void float_value_accumulate(const FloatPage& page, const float* p, size_t stride_p, int num_queries,
                            float* acc, size_t stride_acc) {
  constexpr decltype(&float_value_accumulate) kByType[] =
      KVANT_FOR_FLOAT_TYPES(float_value_accumulate_as);
  kByType[static_cast<size_t>(page.type)](page, p, stride_p, num_queries, acc, stride_acc);
}

void float_value_from_key(const FloatPage& page, int first, int count, const float* p,
                          size_t stride_p, int num_queries, float* acc, size_t stride_acc) {
  constexpr decltype(&float_value_from_key) kByType[] =
      KVANT_FOR_FLOAT_TYPES(float_value_from_key_as);
  kByType[static_cast<size_t>(page.type)](page, first, count, p, stride_p, num_queries, acc,
                                          stride_acc);
}

#undef KVANT_FOR_FLOAT_TYPES

// --- Rows of floats
// ---------------------------------------------------------------------------------------------------

KVANT_INLINE F32 exp_of(F32 x) {
  // Where x is a NaN the maximum is x, so that the result is a NaN too.
  const F32 clamped = max(set1(kExpLowest), x);
  const F32 n = to_float(round(mul(clamped, set1(kLog2E))));
  const F32 r = fma(n, set1(-kLn2Low), fma(n, set1(-kLn2High), clamped));
  F32 series = set1(kExpSeries[0]);
  for (int i = 1; i < 8; ++i) series = fma(series, r, set1(kExpSeries[i]));
  return zero_below(x, kExpLowest, mul(series, power_of_two(round(n))));
}

float exp_and_sum(float* scores, float max_score) {
  const bool all_masked = max_score == -kInfinity;
  F32 lanes = zero();
  for (int t = 0; t < kTokens; t += kLanes) {
    const F32 e = all_masked ? zero() : exp_of(sub(load(scores + t), set1(max_score)));
    store(scores + t, e);
    lanes = add(lanes, e);
  }
  return reduce_add(lanes);
}

float row_max(const float* scores) {
  F32 largest = load(scores);
  for (int t = kLanes; t < kTokens; t += kLanes) largest = max(largest, load(scores + t));
  return reduce_max(largest);
}

void scale_row(float* acc, float factor, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(acc + i, mul(load(acc + i), set1(factor)));
  for (; i < n; ++i) acc[i] *= factor;
}

// Stages of distance 16 and more, between vectors.
KVANT_INLINE void hadamard_far(float* row, int n) {
  for (int half = kLanes; half < n; half *= 2) {
    for (int i = 0; i < n; i += kLanes) {
      if ((i & half) != 0) continue;
      const F32 a = load(row + i);
      const F32 b = load(row + i + half);
      store(row + i, add(a, b));
      store(row + i + half, sub(a, b));
    }
  }
}

KVANT_INLINE void hadamard_short(float* row, int n) {
  for (int half = 1; half < n; half *= 2) {
    for (int i = 0; i < n; ++i) {
      if ((i & half) != 0) continue;
      const float a = row[i];
      const float b = row[i + half];
      row[i] = a + b;
      row[i + half] = a - b;
    }
  }
}

void hadamard(float* rows, int num_rows, size_t stride, int n) {
  const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(n));
  for (int r = 0; r < num_rows; ++r, rows += stride) {
    if (n < kLanes) {
      hadamard_short(rows, n);
    } else {
      for (int i = 0; i < n; i += kLanes) {
        store(rows + i, butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(load(rows + i))))));
      }
      hadamard_far(rows, n);
    }
    scale_row(rows, norm, n);
  }
}

}  // namespace

extern const PageKernels kTable;
const PageKernels kTable = {
    .isa = KVANT_ISA_VALUE,
    .needs_dot_products = kNeedsDotProducts,
    .name = KVANT_ISA_NAME,
    .int_query_bytes = int_query_bytes,
    .int_prepare_query = int_prepare_query,
    .int_key_scores = int_key_scores,
    .int_value_accumulate = int_value_accumulate,
    .float_key_scores = float_key_scores,
    .float_value_accumulate = float_value_accumulate,
    .float_value_from_key = float_value_from_key,
    .exp_and_sum = exp_and_sum,
    .row_max = row_max,
    .scale_row = scale_row,
    .hadamard = hadamard,
};

}  // namespace kvant::KVANT_ISA
