// Part of page_kernels.inc.h: scores and weighted sums of pages of integer codes.
namespace kvant::KVANT_ISA {
namespace {

// scale · an integer sum.
KVANT_INLINE F32 scaled(I32 sum, float scale) { return mul(set1(scale), to_float(sum)); }

size_t int_query_bytes(int num_queries, const IntShape& shape) {
  return static_cast<size_t>(num_queries) *
         query_record_bytes(shape.dim, shape.num_groups, shape.layout == ScaleLayout::kChannel);
}

void int_prepare_query(const float* queries, int num_queries, const IntShape& shape,
                       std::byte* prepared) {
  const auto [bits, dim, num_groups, layout] = shape;
  const size_t record = int_query_bytes(1, shape);
  const int width = dim / num_groups;
  for (int i = 0; i < num_queries; ++i, queries += dim, prepared += record) {
    if (layout == ScaleLayout::kChannel) {
      __builtin_memcpy(prepared, queries, static_cast<size_t>(dim) * sizeof(float));
      continue;
    }
    auto* rows = reinterpret_cast<QuantizedRow*>(prepared + 2 * dim);
    for (int g = 0; g < num_groups; ++g) {
      const float* row = queries + g * width;
      std::byte* const limbs = prepared + 2 * g * width;
      rows[g] = needs_two_limbs(bits) ? quantize_row<TwoLimbs>(row, width, limbs)
                                      : quantize_row<SparseLimbs>(row, width, limbs);
    }
  }
}

template <int kQueries, typename Reader>
KVANT_INLINE void token_scores(const Reader& reader, const OpenPage& page,
                               const std::byte* prepared, size_t record, float* scores,
                               size_t stride) {
  using Words = typename Reader::Queries;
  const int width = page.dim / page.num_groups, group_quads = width / 4;
  for_tile_blocks<kQueries, Words>(
      0, kTokens / kLanes, [&](auto tiles, int tg) KVANT_INLINE_LAMBDA {
        F32 score[tiles.kCount][kQueries];
        for (auto& row : score) {
          for (F32& s : row) s = zero();
        }
        for (int g = 0; g < page.num_groups; ++g) {
          const auto row = [&](size_t i) KVANT_INLINE_LAMBDA {
            return reinterpret_cast<const QuantizedRow*>(prepared + i * record + 2 * page.dim) + g;
          };
          // A group has 2·width bytes, its quads are counted from the first group's on.
          const ptrdiff_t skipped = ptrdiff_t{g} * (2 * width - group_quads * Words::kQuadBytes);
          LimbView<kQueries> rows = {.limbs = {prepared + skipped, record}, .high = 0, .start = {}};
          for (size_t i = 0; i < kQueries; ++i) {
            rows.start[i] = sum_start<Words>(row(i)->int_sum, page.offset);
            if (row(i)->has_high != 0) rows.high = width;
          }
          I32 sums[tiles.kCount][kQueries];
          dot_tiles<Words>(reader, page, tg, g * group_quads, (g + 1) * group_quads, rows, sums);
          for (size_t j = 0; j < tiles.kCount; ++j) {
            const int at = g * kTokens + (tg + static_cast<int>(j)) * kLanes;
            for (size_t i = 0; i < kQueries; ++i) {
              F32& sum = score[j][i];
              sum = fma(load(page.scale + at), scaled(sums[j][i], row(i)->scale), sum);
              sum = fma(load(page.zero + at), set1(row(i)->sum), sum);
            }
          }
        }
        for (size_t j = 0; j < tiles.kCount; ++j) {
          float* out = scores + (tg + static_cast<int>(j)) * kLanes;
          for (size_t i = 0; i < kQueries; ++i) store(out + i * stride, score[j][i]);
        }
      });
}

template <int kQueries, typename Reader>
KVANT_INLINE void channel_scores(const Reader& reader, const OpenPage& page,
                                 const std::byte* prepared, size_t record, float* scores,
                                 size_t stride) {
  alignas(64) std::byte limbs[kQueries][2 * kMaxIntDim];
  using Words = typename Reader::Queries;
  const LimbRows<kQueries> rows = fold<Words, kQueries>(
      reinterpret_cast<const float*>(prepared), record / sizeof(float), page.scale, page.zero,
      page.dim, page.offset, limbs[0], sizeof(limbs[0]));
  for_tile_blocks<kQueries, Words>(
      0, kTokens / kLanes, [&](auto tiles, int tg) KVANT_INLINE_LAMBDA {
        I32 sums[tiles.kCount][kQueries];
        dot_tiles<Words>(reader, page, tg, 0, page.dim / 4, rows.view, sums);
        for (size_t j = 0; j < tiles.kCount; ++j) {
          const int at = (tg + static_cast<int>(j)) * kLanes;
          for (size_t i = 0; i < kQueries; ++i) {
            const F32 score = add(scaled(sums[j][i], rows.scale[i]), set1(rows.constant[i]));
            store(scores + i * stride + at, mul(score, load(page.factor + at)));
          }
        }
      });
}

template <typename Reader>
void key_scores_by(const Reader& reader, const OpenPage& page, const std::byte* prepared,
                   int num_queries, float* scores, size_t stride) {
  const size_t record = query_record_bytes(page.dim, page.num_groups, page.per_channel);
  for_query_blocks(num_queries, [&](auto block, int first) KVANT_INLINE_LAMBDA {
    const size_t i = static_cast<size_t>(first);
    if (page.per_channel) {
      channel_scores<block.kCount>(reader, page, prepared + i * record, record, scores + i * stride,
                                   stride);
    } else {
      token_scores<block.kCount>(reader, page, prepared + i * record, record, scores + i * stride,
                                 stride);
    }
  });
}

void int_key_scores(const IntPage& page, const std::byte* prepared, int num_queries, float* scores,
                    size_t stride) {
  OpenPage open;
  open_page(page, kTokens / kLanes, page.dim / 4, open);
  with_reader(open, page, [&](const auto& reader) {
    key_scores_by(reader, open, prepared, num_queries, scores, stride);
  });
}

// How the sum over a page's tokens, x and what the zero points add, gets into 16 channels from c
// on.
struct TokenScales {
  const OpenPage& page;
};
KVANT_INLINE F32 add_sum(const TokenScales&, F32 out, F32 x, F32 constant, int) {
  return add(out, add(x, constant));
}
struct TokenScalesAcross {
  const OpenPage& page;
};
KVANT_INLINE F32 add_sum(const TokenScalesAcross& scales, F32 out, F32 x, F32 constant, int c) {
  return fma(add(x, constant), load(scales.page.across + c), out);
}
struct ChannelScales {
  const OpenPage& page;
};
KVANT_INLINE F32 add_sum(const ChannelScales& scales, F32 out, F32 x, F32 constant, int c) {
  const F32 zeros = mul(load(scales.page.zero + c), constant);
  return add(out, fma(load(scales.page.scale + c), x, zeros));
}

template <int kQueries, typename Reader, typename Scales>
KVANT_INLINE void accumulate_values(const Reader& reader, const Scales& scales, const float* p,
                                    size_t stride_p, float* acc, size_t stride_acc) {
  using Words = typename Reader::Probabilities;
  const OpenPage& page = scales.page;
  alignas(64) std::byte limbs[kQueries][2 * kTokens];
  const int group_tiles = page.dim / page.num_groups / kLanes;
  for (int g = 0; g < page.num_groups; ++g) {
    const LimbRows<kQueries> rows = fold<Words, kQueries>(
        p, stride_p, page.per_channel ? page.factor : page.scale + g * kTokens,
        page.per_channel ? nullptr : page.zero + g * kTokens, kTokens, page.offset, limbs[0],
        sizeof(limbs[0]));
    for_tile_blocks<kQueries, Words>(
        g * group_tiles, (g + 1) * group_tiles, [&](auto tiles, int first) KVANT_INLINE_LAMBDA {
          I32 sums[tiles.kCount][kQueries];
          dot_tiles<Words>(reader, page, first, 0, kTokens / 4, rows.view, sums);
          for (size_t j = 0; j < tiles.kCount; ++j) {
            const int c = (first + static_cast<int>(j)) * kLanes;
            for (size_t i = 0; i < kQueries; ++i) {
              float* out = acc + i * stride_acc + c;
              store(out, add_sum(scales, load(out), scaled(sums[j][i], rows.scale[i]),
                                 set1(rows.constant[i]), c));
            }
          }
        });
  }
}

template <typename Reader, typename Scales>
void accumulate_values_by(const Reader& reader, const Scales& scales, const float* p,
                          size_t stride_p, int num_queries, float* acc, size_t stride_acc) {
  for_query_blocks(num_queries, [&](auto block, int first) KVANT_INLINE_LAMBDA {
    const size_t i = static_cast<size_t>(first);
    accumulate_values<block.kCount>(reader, scales, p + i * stride_p, stride_p,
                                    acc + i * stride_acc, stride_acc);
  });
}

void int_value_accumulate(const IntPage& page, const float* p, size_t stride_p, int num_queries,
                          float* acc, size_t stride_acc) {
  OpenPage open;
  open_page(page, page.dim / kLanes, kTokens / 4, open);
  with_reader(open, page, [&](const auto& reader) {
    const auto accumulate = [&](const auto& scales) KVANT_INLINE_LAMBDA {
      accumulate_values_by(reader, scales, p, stride_p, num_queries, acc, stride_acc);
    };
    if (open.per_channel) return accumulate(ChannelScales{open});
    if (open.has_across) return accumulate(TokenScalesAcross{open});
    accumulate(TokenScales{open});
  });
}

}  // namespace
}  // namespace kvant::KVANT_ISA
