// Part of page_kernels.inc.h: pages of floats. Elements are widened exactly and every sum runs over
// dims or tokens in order, so that the result is the scalar kernel's to the bit.
namespace kvant::KVANT_ISA {
namespace {

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

// The kernels go down a page in columns of 16 elements, a strip of rows at a time, and keep their
// sums in the output between strips: so the page is read nearly in order. Each step asks for its
// share of what comes next, as the hardware doesn't follow strides: the same place of the next page
// or, where that isn't known, the next strip.
// A strip of dims is also a block of those that share an E8M0 scale.
constexpr int kKeyStrip =
    kMxBlock;  // dims: 4 KiB of bf16, 512 products for each load and store of sums
constexpr int kValueStrip = 16;  // tokens

// At the step `at` bytes into a strip: asks for that place of the next strip, and of the next page.
// Several steps share a cache line; each line is asked for once.
template <size_t kStepBytes>
KVANT_INLINE void ask_ahead(const std::byte* strip, size_t strip_bytes, ptrdiff_t next_page,
                            size_t at) {
  if (at % 64 == 0) ask_for(strip, static_cast<ptrdiff_t>(strip_bytes + at));
  if (at % 64 == kStepBytes % 64) ask_for_later(strip, next_page + static_cast<ptrdiff_t>(at));
}

template <FloatType kType, int kQueries>
KVANT_INLINE void score_strip(const std::byte* strip, ptrdiff_t distance, size_t num_dims,
                              int num_tokens, const float* q, size_t stride_q, bool is_first,
                              float* scores, size_t stride) {
  constexpr size_t kRowBytes = kBytesOf<kType> * kTokens;
  constexpr size_t kColumnBytes = kBytesOf<kType> * kLanes;
  for (int t = 0; t < num_tokens; t += kLanes) {
    F32 sum[kQueries];
    for (size_t i = 0; i < kQueries; ++i)
      sum[i] = is_first ? zero() : load(scores + i * stride + t);
    const std::byte* k = strip + kBytesOf<kType> * static_cast<size_t>(t);
    size_t ahead = static_cast<size_t>(t) / kLanes * kKeyStrip * kColumnBytes;
    for (size_t d = 0; d < num_dims; ++d, k += kRowBytes, ahead += kColumnBytes) {
      ask_ahead<kColumnBytes>(strip, kKeyStrip * kRowBytes, distance, ahead);
      const F32 x = load_as<kType>(k);
      for (size_t i = 0; i < kQueries; ++i) sum[i] = fma(set1(q[i * stride_q + d]), x, sum[i]);
    }
    for (size_t i = 0; i < kQueries; ++i) store(scores + i * stride + t, sum[i]);
  }
}

// The products of one block of dims, times its scales, added to the scores.
template <FloatType kType, int kQueries>
KVANT_INLINE void score_block(const std::byte* strip, ptrdiff_t distance, const FloatPage& page,
                              size_t first, const float* q, float* scores, size_t stride) {
  alignas(64) float part[kQueries][kTokens];
  alignas(64) float scale[kTokens];
  widen_e8m0(page.block_scale + first / kMxBlock * kTokens, kTokens, scale);
  score_strip<kType, kQueries>(strip, distance, kMxBlock, page.num_tokens, q,
                               static_cast<size_t>(page.dim), true, part[0], kTokens);
  for (size_t i = 0; i < kQueries; ++i) {
    for (int t = 0; t < page.num_tokens; t += kLanes) {
      const F32 before = first == 0 ? zero() : load(scores + i * stride + t);
      store(scores + i * stride + t, fma(load(part[i] + t), load(scale + t), before));
    }
  }
}

template <FloatType kType>
void float_key_scores_as(const FloatPage& page, const float* queries, int num_queries,
                         float* scores, size_t stride) {
  alignas(64) float scale[kTokens];
  token_scales(page, scale);
  const size_t dim = static_cast<size_t>(page.dim);
  for_query_blocks(num_queries, [&](auto block, int first) KVANT_INLINE_LAMBDA {
    const float* q = queries + static_cast<size_t>(first) * dim;
    float* out = scores + static_cast<size_t>(first) * stride;
    const std::byte* strip = page.data;
    const ptrdiff_t distance = distance_ahead(page.data, page.next);
    for (size_t d = 0; d < dim; d += kKeyStrip, strip += kBytesOf<kType> * kTokens * kKeyStrip) {
      if (page.block_scale != nullptr) {
        score_block<kType, block.kCount>(strip, distance, page, d, q + d, out, stride);
      } else {
        score_strip<kType, block.kCount>(strip, distance, dim - d < kKeyStrip ? dim - d : kKeyStrip,
                                         page.num_tokens, q + d, dim, d == 0, out, stride);
      }
    }
    for (size_t i = 0; i < block.kCount; ++i) {
      for (int t = 0; t < kTokens; t += kLanes) {
        const F32 score =
            t < page.num_tokens ? mul(load(out + i * stride + t), load(scale + t)) : zero();
        store(out + i * stride + t, keep_first(score, page.num_tokens - t, -kInfinity));
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

// `count` channels of tokens [0, num_tokens) of a strip of at most kValueStrip rows, `row_bytes`
// apart; weights are kTokens apart.
template <FloatType kType, int kQueries>
KVANT_INLINE void accumulate_strip(const std::byte* strip, ptrdiff_t distance, size_t row_bytes,
                                   int count, int num_tokens, const float* weights, float* acc,
                                   size_t stride_acc) {
  size_t ahead = 0;
  for (int c = 0; c < count; c += kLanes, acc += kLanes) {
    F32 sum[kQueries];
    for (size_t i = 0; i < kQueries; ++i) sum[i] = load(acc + i * stride_acc);
    const std::byte* v = strip + kBytesOf<kType> * static_cast<size_t>(c);
    for (int t = 0; t < num_tokens; ++t, v += row_bytes, ahead += kBytesOf<kType> * kLanes) {
      ask_ahead<kBytesOf<kType> * kLanes>(strip, kValueStrip * row_bytes, distance, ahead);
      const F32 x = load_as<kType>(v);
      for (int i = 0; i < kQueries; ++i) sum[i] = fma(set1(weights[i * kTokens + t]), x, sum[i]);
    }
    for (size_t i = 0; i < kQueries; ++i) store(acc + i * stride_acc, sum[i]);
  }
}

// All tokens of `count` channels from `first` on, whose tokens' scales are given.
template <FloatType kType, int kQueries>
KVANT_INLINE void accumulate_channels(const FloatPage& page, int first, int count,
                                      const float* scale, const float* p, size_t stride_p,
                                      float* acc, size_t stride_acc) {
  alignas(64) float weights[kQueries][kTokens];
  float_weights(page, scale, p, stride_p, weights);
  const size_t row_bytes = kBytesOf<kType> * static_cast<size_t>(page.dim);
  const std::byte* strip = page.data + kBytesOf<kType> * static_cast<size_t>(first);
  const ptrdiff_t distance = distance_ahead(page.data, page.next);
  for (int t = 0; t < page.num_tokens; t += kValueStrip, strip += row_bytes * kValueStrip) {
    const int rest = page.num_tokens - t;
    accumulate_strip<kType, kQueries>(strip, distance, row_bytes, count,
                                      rest < kValueStrip ? rest : kValueStrip, weights[0] + t,
                                      acc + first, stride_acc);
  }
}

template <FloatType kType>
void float_value_accumulate_as(const FloatPage& page, const float* p, size_t stride_p,
                               int num_queries, float* acc, size_t stride_acc) {
  alignas(64) float scale[kTokens];
  token_scales(page, scale);
  const int width = page.block_scale == nullptr ? page.dim : kMxBlock;
  for_query_blocks(num_queries, [&](auto block, int first) KVANT_INLINE_LAMBDA {
    const float* weights = p + static_cast<size_t>(first) * stride_p;
    float* out = acc + static_cast<size_t>(first) * stride_acc;
    for (int c = 0; c < page.dim; c += width) {
      if (page.block_scale != nullptr)
        widen_e8m0(page.block_scale + c / kMxBlock * kTokens, kTokens, scale);
      accumulate_channels<kType, block.kCount>(page, c, width, scale, weights, stride_p, out,
                                               stride_acc);
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
  for_query_blocks(num_queries, [&](auto block, int first) KVANT_INLINE_LAMBDA {
    constexpr size_t kQueries = block.kCount;
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

}  // namespace
}  // namespace kvant::KVANT_ISA
