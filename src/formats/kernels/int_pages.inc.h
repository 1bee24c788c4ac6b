// Part of page_kernels.inc.h: pages of integer codes.
//
// Codes of 8, 4 and 2 bits are multiplied as they lie: a dot product runs over the vectors of a
// tile once per bit field, and codes that are places in a table are looked up on the way. Widths
// that need several planes (3, 5, 6, 7), and single bits, are put together into 8-bit codes first,
// once per call.
namespace kvant::KVANT_ISA {
namespace {

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

// Puts the planes of a page together: 8-bit codes, [group][quad] vectors of 64 bytes.
void unpack(const IntPage& page, int num_groups, int num_quads, uint8_t* tiles) {
  const Planes planes = planes_of(page.bits);
  const uint8_t* codes = page.codes;
  for (int p = 0, low_bit = 0; p < planes.count; low_bit += planes.width[p++]) {
    const int width = planes.width[p];
    if (width == 4) codes = unpack_plane<4>(codes, num_groups, num_quads, low_bit, tiles);
    if (width == 2) codes = unpack_plane<2>(codes, num_groups, num_quads, low_bit, tiles);
    if (width == 1) codes = unpack_plane<1>(codes, num_groups, num_quads, low_bit, tiles);
  }
}

// A page made ready for the loops over queries: codes of one plane, scales and zero points as
// floats.
struct OpenPage {
  const uint8_t* tiles;
  int width;        // 8, 4 or 2: bits of a code in the tiles
  int num_vectors;  // of a tile
  int dim;
  int num_groups;
  int offset;
  bool per_channel;
  bool has_across;  // of pages whose scales are per token
  alignas(64) float scale[kTokens * kMaxGroups];
  alignas(64) float zero[kTokens * kMaxGroups];
  alignas(64) float factor[kTokens];     // of per-channel pages
  alignas(64) float across[kMaxIntDim];  // of the others: a factor per channel
  alignas(64) uint8_t levels[64];        // where codes are places: the table, four times over
  alignas(64) uint8_t unpacked[kTokens * kMaxIntDim];
};

// The factors of a page's tokens.
void open_factors(const IntPage& page, float* out) {
  if (page.across != nullptr) return widen(page.across, kTokens, false, out);
  if (page.factor == nullptr) {
    for (int t = 0; t < kTokens; t += kLanes) store(out + t, set1(1.0f));
    return;
  }
  alignas(64) uint16_t halves[kTokens];
  for (int t = 0; t < kTokens; ++t) halves[t] = static_cast<uint16_t>(page.factor[t] << 7);
  widen(halves, kTokens, false, out);
}

void open_scales(const IntPage& page, int count, float* out) {
  if (page.block_scale == nullptr)
    return widen(page.scale, count, page.layout == ScaleLayout::kPage, out);
  if (page.block_type == BlockScale::kE8m0) widen_e8m0(page.block_scale, count, out);
  for (int i = 0; i < count; i += kLanes) {
    const bool e4m3 = page.block_type == BlockScale::kE4m3;
    store(out + i, mul(e4m3 ? load_e4m3(page.block_scale + i) : load(out + i), set1(page.unit)));
  }
}

// A K page is 4 tiles of dim/4 quads, a V page dim/16 tiles of 16.
void open_page(const IntPage& page, int num_tiles, int num_quads, OpenPage& open) {
  const bool as_they_lie = page.bits > 1 && planes_of(page.bits).count == 1;
  open.width = as_they_lie ? page.bits : 8;
  open.num_vectors = plane_vectors(open.width, num_quads);
  open.tiles = as_they_lie ? page.codes : open.unpacked;
  if (!as_they_lie) unpack(page, num_tiles, num_quads, open.unpacked);
  open.dim = page.dim;
  open.per_channel = page.layout == ScaleLayout::kChannel;
  open.num_groups = open.per_channel ? 1 : page.num_groups;
  open.offset = page.offset;
  const int count = open.per_channel ? page.dim : kTokens * page.num_groups;
  open_scales(page, count, open.scale);
  widen(page.zero, count, page.layout == ScaleLayout::kPage, open.zero);
  if (open.per_channel) open_factors(page, open.factor);
  open.has_across = !open.per_channel && page.across != nullptr;
  if (open.has_across) widen(page.across, page.dim, false, open.across);
  for (int i = 0; page.levels != nullptr && i < 64; ++i) open.levels[i] = page.levels[i % 16];
}

// Quantizes n floats (a multiple of 16) whose largest magnitude is known into limbs; `sum` is left
// to the caller.
KVANT_INLINE QuantizedRow quantize_below(float largest, const float* x, int n, std::byte* limbs) {
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

KVANT_INLINE QuantizedRow quantize(const float* x, int n, std::byte* limbs) {
  F32 magnitude = zero();
  for (int i = 0; i < n; i += kLanes) magnitude = max(abs(load(x + i)), magnitude);
  return quantize_below(reduce_max(magnitude), x, n, limbs);
}

KVANT_INLINE float sum_of(const float* x, int n) {
  F32 lanes = zero();
  for (int i = 0; i < n; i += kLanes) lanes = add(lanes, load(x + i));
  return reduce_add(lanes);
}

// How the bit fields of a vector become codes: as they are, or as places in a table.
template <int kBits>
struct PlainCodes {
  static constexpr int kWidth = kBits;
};
struct TableCodes {
  static constexpr int kWidth = 4;
  U8 table;
};
template <int kSlot, int kBits>
KVANT_INLINE Codes read_codes(PlainCodes<kBits>, U8 vector) {
  return split<kBits * kSlot, kBits>(vector);
}
template <int kSlot>
KVANT_INLINE Codes read_codes(const TableCodes& reader, U8 vector) {
  return split<0, 8>(look_up(reader.table, field<4 * kSlot, 4>(vector)));
}

// Adds the dot products of quads [from, to) of one tile with kQueries rows of limbs, `stride` bytes
// apart. The tile is `num_vectors` vectors, each holding a quad in every field of the reader's
// width.
template <typename Reader, int kQueries, int kSlot = 0>
KVANT_INLINE void dot_quads(const Reader& reader, const uint8_t* tile, int num_vectors, int from,
                            int to, const std::byte* limbs, size_t stride, Acc (&acc)[kQueries]) {
  const int first = from > kSlot * num_vectors ? from : kSlot * num_vectors;
  const int last = to < (kSlot + 1) * num_vectors ? to : (kSlot + 1) * num_vectors;
  const uint8_t* vector = tile + 64 * (first - kSlot * num_vectors);
  const std::byte* quad_limbs = limbs + 8 * first;
  // Unrolled, GCC sums the products of several quads before it adds them to the accumulators, and
  // runs out of registers.
#pragma GCC unroll 1
  for (int quad = first; quad < last; ++quad, vector += 64, quad_limbs += 8) {
    const Codes codes = read_codes<kSlot>(reader, load_bytes(vector));
    for (size_t i = 0; i < kQueries; ++i) acc[i] = dot(acc[i], codes, quad_limbs + i * stride);
  }
  if constexpr ((kSlot + 1) * Reader::kWidth < 8) {
    dot_quads<Reader, kQueries, kSlot + 1>(reader, tile, num_vectors, from, to, limbs, stride, acc);
  }
}

// run(reader) with the reader of the page's codes.
template <typename Run>
KVANT_INLINE void with_reader(const OpenPage& page, bool has_levels, Run run) {
  if (has_levels) return run(TableCodes{load_bytes(page.levels)});
  if (page.width == 8) return run(PlainCodes<8>{});
  if (page.width == 4) return run(PlainCodes<4>{});
  run(PlainCodes<2>{});
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

template <int kQueries, typename Reader>
KVANT_INLINE void token_scores(const Reader& reader, const OpenPage& page,
                               const std::byte* prepared, size_t record, float* scores,
                               size_t stride) {
  const int group_quads = page.dim / page.num_groups / 4;
  for (int tg = 0; tg < kTokens / kLanes; ++tg) {
    F32 score[kQueries];
    for (F32& s : score) s = zero();
    for (int g = 0; g < page.num_groups; ++g) {
      Acc acc[kQueries];
      for (Acc& a : acc) a = zero_acc();
      dot_quads(reader, page.tiles + 64 * tg * page.num_vectors, page.num_vectors, g * group_quads,
                (g + 1) * group_quads, prepared, record, acc);
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

// q∘scale of one query, quantized, and what the zero points add.
KVANT_INLINE QuantizedRow channel_query(const OpenPage& page, const float* q, std::byte* limbs) {
  alignas(64) float scaled_query[kMaxIntDim];
  F32 magnitude = zero();
  F32 constant = zero();
  for (int k = 0; k < page.dim; k += kLanes) {
    const F32 x = load(q + k);
    const F32 y = mul(x, load(page.scale + k));
    store(scaled_query + k, y);
    magnitude = max(abs(y), magnitude);
    constant = fma(x, load(page.zero + k), constant);
  }
  QuantizedRow row = quantize_below(reduce_max(magnitude), scaled_query, page.dim, limbs);
  row.sum = reduce_add(constant);
  return row;
}

template <int kQueries, typename Reader>
KVANT_INLINE void channel_scores(const Reader& reader, const OpenPage& page,
                                 const std::byte* prepared, size_t record, float* scores,
                                 size_t stride) {
  alignas(64) std::byte limbs[kQueries][2 * kMaxIntDim];
  QuantizedRow rows[kQueries];
  for (size_t i = 0; i < kQueries; ++i) {
    rows[i] = channel_query(page, reinterpret_cast<const float*>(prepared + i * record), limbs[i]);
  }
  for (int tg = 0; tg < kTokens / kLanes; ++tg) {
    Acc acc[kQueries];
    for (Acc& a : acc) a = zero_acc();
    dot_quads(reader, page.tiles + 64 * tg * page.num_vectors, page.num_vectors, 0, page.dim / 4,
              limbs[0], sizeof(limbs[0]), acc);
    const F32 factor = load(page.factor + tg * kLanes);
    for (size_t i = 0; i < kQueries; ++i) {
      const F32 score = add(scaled(acc[i], rows[i], page.offset), set1(rows[i].sum));
      store(scores + i * stride + tg * kLanes, mul(score, factor));
    }
  }
}

template <typename Reader>
void key_scores_by(const Reader& reader, const OpenPage& page, const std::byte* prepared,
                   int num_queries, float* scores, size_t stride) {
  const size_t record = query_record_bytes(page.dim, page.num_groups, page.per_channel);
  for_query_blocks(num_queries, [&](auto block, int first) KVANT_INLINE_LAMBDA {
    const size_t i = static_cast<size_t>(first);
    if (page.per_channel) {
      channel_scores<block.kQueries>(reader, page, prepared + i * record, record,
                                     scores + i * stride, stride);
    } else {
      token_scores<block.kQueries>(reader, page, prepared + i * record, record, scores + i * stride,
                                   stride);
    }
  });
}

void int_key_scores(const IntPage& page, const std::byte* prepared, int num_queries, float* scores,
                    size_t stride) {
  OpenPage open;
  open_page(page, kTokens / kLanes, page.dim / 4, open);
  with_reader(open, page.levels != nullptr, [&](const auto& reader) {
    key_scores_by(reader, open, prepared, num_queries, scores, stride);
  });
}

// p∘scale of one query for the channels of one group (p∘factor where scales are per channel),
// quantized, and what the zero points add.
KVANT_INLINE QuantizedRow value_weights(const OpenPage& page, int group, const float* p,
                                        std::byte* limbs) {
  alignas(64) float weights[kTokens];
  if (page.per_channel) {
    for (int t = 0; t < kTokens; t += kLanes)
      store(weights + t, mul(load(p + t), load(page.factor + t)));
    QuantizedRow row = quantize(weights, kTokens, limbs);
    row.sum = sum_of(weights, kTokens);
    return row;
  }
  F32 magnitude = zero();
  F32 constant = zero();
  for (int t = 0; t < kTokens; t += kLanes) {
    const F32 x = load(p + t);
    const F32 y = mul(x, load(page.scale + group * kTokens + t));
    store(weights + t, y);
    magnitude = max(abs(y), magnitude);
    constant = fma(x, load(page.zero + group * kTokens + t), constant);
  }
  QuantizedRow row = quantize_below(reduce_max(magnitude), weights, kTokens, limbs);
  row.sum = reduce_add(constant);
  return row;
}

template <int kQueries, typename Reader>
KVANT_INLINE void accumulate_values(const Reader& reader, const OpenPage& page, const float* p,
                                    size_t stride_p, float* acc, size_t stride_acc) {
  alignas(64) std::byte limbs[kQueries][2 * kTokens];
  QuantizedRow rows[kQueries];
  const int group_width = page.dim / page.num_groups;
  for (int g = 0; g < page.num_groups; ++g) {
    for (size_t i = 0; i < kQueries; ++i)
      rows[i] = value_weights(page, g, p + i * stride_p, limbs[i]);
    for (int c = g * group_width; c < (g + 1) * group_width; c += kLanes) {
      Acc sums[kQueries];
      for (Acc& a : sums) a = zero_acc();
      dot_quads(reader, page.tiles + 4 * c * page.num_vectors, page.num_vectors, 0, kTokens / 4,
                limbs[0], sizeof(limbs[0]), sums);
      for (size_t i = 0; i < kQueries; ++i) {
        const F32 x = scaled(sums[i], rows[i], page.offset);
        const F32 constant = set1(rows[i].sum);
        const F32 y = page.per_channel
                          ? fma(load(page.scale + c), x, mul(load(page.zero + c), constant))
                          : add(x, constant);
        float* out = acc + i * stride_acc + c;
        store(out, page.has_across ? fma(y, load(page.across + c), load(out)) : add(load(out), y));
      }
    }
  }
}

template <typename Reader>
void accumulate_values_by(const Reader& reader, const OpenPage& page, const float* p,
                          size_t stride_p, int num_queries, float* acc, size_t stride_acc) {
  for_query_blocks(num_queries, [&](auto block, int first) KVANT_INLINE_LAMBDA {
    const size_t i = static_cast<size_t>(first);
    accumulate_values<block.kQueries>(reader, page, p + i * stride_p, stride_p,
                                      acc + i * stride_acc, stride_acc);
  });
}

void int_value_accumulate(const IntPage& page, const float* p, size_t stride_p, int num_queries,
                          float* acc, size_t stride_acc) {
  OpenPage open;
  open_page(page, page.dim / kLanes, kTokens / 4, open);
  with_reader(open, page.levels != nullptr, [&](const auto& reader) {
    accumulate_values_by(reader, open, p, stride_p, num_queries, acc, stride_acc);
  });
}

}  // namespace
}  // namespace kvant::KVANT_ISA
