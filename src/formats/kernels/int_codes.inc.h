// Part of page_kernels.inc.h: the codes of integer pages, from the bytes of a page to sums of
// products.
//
// Codes of 8, 4 and 2 bits are multiplied as they lie: a dot product runs over the vectors of a
// tile once per bit field, and codes that are places in a table are looked up on the way. So are
// codes of 3 bits, from both planes, where the quads of a tile are a multiple of 8. Other widths
// that need several planes (5, 6, 7), and single bits, are put together into 8-bit codes first,
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
const uint8_t* unpack_plane(const uint8_t* codes, ptrdiff_t ahead, int num_groups, int num_quads,
                            int low_bit, uint8_t* tiles) {
  const int nv = plane_vectors(kWidth, num_quads);
  for (int group = 0; group < num_groups; ++group, tiles += 64 * num_quads) {
    for (int j = 0; j < nv; ++j, codes += 64) {
      ask_for_later(codes, ahead);
      unpack_vector<kWidth>(load_bytes(codes), j, nv, num_quads, low_bit, tiles);
    }
  }
  return codes;
}

// Puts the planes of a page together: 8-bit codes, [group][quad] vectors of 64 bytes.
void unpack(const IntPage& page, int num_groups, int num_quads, uint8_t* tiles) {
  const Planes planes = planes_of(page.bits);
  const uint8_t* codes = page.codes;
  const ptrdiff_t ahead = distance_ahead(page.codes, page.next);
  for (int p = 0, low_bit = 0; p < planes.count; low_bit += planes.width[p++]) {
    const int width = planes.width[p];
    if (width == 4) codes = unpack_plane<4>(codes, ahead, num_groups, num_quads, low_bit, tiles);
    if (width == 2) codes = unpack_plane<2>(codes, ahead, num_groups, num_quads, low_bit, tiles);
    if (width == 1) codes = unpack_plane<1>(codes, ahead, num_groups, num_quads, low_bit, tiles);
  }
}

// A page made ready for the loops over queries: codes of one plane, scales and zero points as
// floats.
struct OpenPage {
  const uint8_t* tiles;
  const uint8_t* pairs;  // of codes of 3 bits: their lower two; `tiles` are the upper ones
  int width;             // 8, 4, 2 or 1: bits of a code in the tiles
  int num_vectors;       // of a tile
  int ask_vectors;       // of a tile's share of the page
  ptrdiff_t ahead;       // from a tile to what is asked for while it is read
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

  // Of what is asked for, a tile's part.
  KVANT_INLINE_LAMBDA const uint8_t* tiles_share(int tile) const {
    return (width == 1 ? pairs : tiles) + 64 * tile * ask_vectors;
  }
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
  const bool in_two_planes = page.bits == 3 && num_quads % 8 == 0;
  const bool as_they_lie = in_two_planes || (page.bits > 1 && planes_of(page.bits).count == 1);
  open.width = in_two_planes ? 1 : (as_they_lie ? page.bits : 8);
  open.num_vectors = plane_vectors(open.width, num_quads);
  open.pairs = page.codes;
  open.tiles = as_they_lie ? page.codes : open.unpacked;
  if (in_two_planes) open.tiles += 64 * num_tiles * plane_vectors(2, num_quads);
  open.ask_vectors = in_two_planes ? 3 * open.num_vectors : open.num_vectors;
  open.ahead = as_they_lie ? distance_ahead(page.codes, page.next) : 0;
  if (!as_they_lie) unpack(page, num_tiles, num_quads, open.unpacked);
  open.dim = page.dim;
  open.per_channel = page.layout == ScaleLayout::kChannel;
  open.num_groups = open.per_channel ? 1 : page.num_groups;
  const int middle = middle_of(page.bits, page.zero != nullptr);
  open.offset = page.offset + middle;
  const int count = open.per_channel ? page.dim : kTokens * page.num_groups;
  open_scales(page, count, open.scale);
  widen(page.zero, count, page.layout == ScaleLayout::kPage, open.zero);
  for (int i = 0; middle != 0 && i < count; i += kLanes) {
    store(open.zero + i,
          fma(load(open.scale + i), set1(static_cast<float>(middle)), load(open.zero + i)));
  }
  if (open.per_channel) open_factors(page, open.factor);
  open.has_across = !open.per_channel && page.across != nullptr;
  if (open.has_across) widen(page.across, page.dim, false, open.across);
  for (int i = 0; page.levels != nullptr && i < 64; ++i) open.levels[i] = page.levels[i % 16];
}

// How codes are multiplied with rows of integers: with both limbs of each (TwoLimbs), with one and,
// where there is one, the other (SparseLimbs), or with one byte (Bytes).
struct TwoLimbs {
  using Sum = Acc;
  static constexpr int kSums = kAccumulators;
  static constexpr int kQuadBytes = 8;
  static constexpr int kBias = kCodeBias;
  static constexpr bool kIsSparse = false;
};
struct OneByte {
  using Sum = Run;
  static constexpr int kSums = kRuns;
  static constexpr int kQuadBytes = 4;
  static constexpr int kBias = 0;
};
struct SparseLimbs : OneByte {
  static constexpr int kLargest = 128;
  static constexpr bool kIsSparse = true;
};
struct Bytes : OneByte {
  static constexpr int kLargest = 255;
  static constexpr bool kIsSparse = false;
};
KVANT_INLINE Limbs load_words(TwoLimbs, const std::byte* p) { return load_limbs(p); }
KVANT_INLINE Limb load_words(OneByte, const std::byte* p) { return load_limb(p); }
KVANT_INLINE Acc multiply(TwoLimbs, Acc acc, Codes codes, Limbs words) {
  return dot(acc, codes, words);
}
KVANT_INLINE Run multiply(SparseLimbs, Run run, U8 codes, Limb word) {
  return dot_signed(run, codes, word);
}
KVANT_INLINE Run multiply(Bytes, Run run, U8 codes, Limb word) {
  return dot_unsigned(run, codes, word);
}

// How the bit fields of a vector become codes: as they are, or as places in a table.
struct LargeCodes {
  using Queries = TwoLimbs;
  using Probabilities = TwoLimbs;
  static constexpr int kAskSlots = 1;
  static constexpr int kWidth = 8;
};
template <int kBits>
struct SmallCodes {
  using Queries = SparseLimbs;
  using Probabilities = Bytes;
  static constexpr int kAskSlots = 1;
  static constexpr int kWidth = kBits;
  // Codes that were put together from planes have 3 bits or 1.
  static constexpr int kLargest = kBits == 8 ? 7 : (1 << kBits) - 1;
};
struct TableCodes {
  using Queries = SparseLimbs;
  using Probabilities = Bytes;
  static constexpr int kAskSlots = 1;
  static constexpr int kWidth = 4;
  static constexpr int kLargest = 32;
  U8 table;
};
// Two planes: `vector` is of the upper bits, of which there are half as many as of the lower two.
struct SplitCodes {
  using Queries = SparseLimbs;
  using Probabilities = Bytes;
  static constexpr int kWidth = 1;
  static constexpr int kLargest = 7;
  static constexpr int kAskSlots = 3;
  const uint8_t* upper;
  const uint8_t* lower;
};
// `vector`: where the quad is; `before` vectors of the plane are of tiles before its own, which has
// `num_vectors`.
template <int kSlot>
KVANT_INLINE Codes read_codes(LargeCodes, const uint8_t* vector, int, int) {
  return split(load_bytes(vector));
}
template <int kSlot, int kBits>
KVANT_INLINE U8 read_codes(SmallCodes<kBits>, const uint8_t* vector, int, int) {
  if constexpr (kBits == 8) {
    return load_bytes(vector);
  } else {
    return field<kBits * kSlot, kBits>(load_bytes(vector));
  }
}
template <int kSlot>
KVANT_INLINE U8 read_codes(const TableCodes& reader, const uint8_t* vector, int, int) {
  return look_up(reader.table, field<4 * kSlot, 4>(load_bytes(vector)));
}
template <int kSlot>
KVANT_INLINE U8 read_codes(const SplitCodes& reader, const uint8_t* vector, int before,
                           int num_vectors) {
  // A tile of the lower plane is twice as long: its second half is read in odd slots.
  const uint8_t* lower =
      reader.lower + (vector - reader.upper) + 64 * (before + (kSlot % 2 == 0 ? 0 : num_vectors));
  return bit_or(field<kSlot / 2 * 2, 2>(load_bytes(lower)),
                shift_left(field<kSlot, 1>(load_bytes(vector)), 2));
}

// use(Block<n>{}, tile) over the tiles [first, end), for as many at once as have room for their
// sums of kQueries queries.
template <int kQueries, typename Words, typename Use>
KVANT_INLINE void for_tile_blocks(int first, int end, Use use) {
  int tile = first;
  if constexpr (Words::kSums >= 4 * kQueries) {
    for (; tile + 4 <= end; tile += 4) use(Block<4>{}, tile);
  }
  if constexpr (Words::kSums >= 2 * kQueries) {
    for (; tile + 2 <= end; tile += 2) use(Block<2>{}, tile);
  }
  for (; tile < end; ++tile) use(Block<1>{}, tile);
}

// Neighbouring tiles, each of `num_vectors` vectors, and how far from them lies what is asked for
// while they are read.
struct Tiles {
  const uint8_t* bytes;
  int first;  // of the page's tiles
  int num_vectors;
  const uint8_t* asked;  // the tiles' share of the page
  ptrdiff_t ahead;
};

// Rows of limbs, `stride` bytes apart.
struct LimbBytes {
  const std::byte* first;
  size_t stride;
};

// Adds the dot products of quads [from, to) of kTiles tiles with kQueries rows of limbs. A vector
// holds a quad in every field of the reader's width.
template <typename Words, int kTiles, int kQueries, typename Reader, int kSlot = 0>
KVANT_INLINE void dot_quads(const Reader& reader, const Tiles& tiles, int from, int to,
                            const LimbBytes& limbs, typename Words::Sum (&acc)[kTiles][kQueries]) {
  const int num_vectors = tiles.num_vectors;
  const int first = from > kSlot * num_vectors ? from : kSlot * num_vectors;
  const int last = to < (kSlot + 1) * num_vectors ? to : (kSlot + 1) * num_vectors;
  const uint8_t* vector = tiles.bytes + 64 * (first - kSlot * num_vectors);
  const std::byte* quad_limbs = limbs.first + Words::kQuadBytes * first;
  // Unrolled, GCC sums the products of several quads before it adds them to the accumulators, and
  // runs out of registers.
#pragma GCC unroll 1
  for (int quad = first; quad < last; ++quad, vector += 64, quad_limbs += Words::kQuadBytes) {
    decltype(load_words(Words{}, quad_limbs)) words[kQueries];
    for (size_t i = 0; i < kQueries; ++i)
      words[i] = load_words(Words{}, quad_limbs + i * limbs.stride);
    for (int j = 0; j < kTiles; ++j) {
      const uint8_t* from_tile = vector + 64 * j * num_vectors;
      if constexpr (kSlot < Reader::kAskSlots)
        ask_for_later(tiles.asked + 64 * (kTiles * quad + j), tiles.ahead);
      const auto codes =
          read_codes<kSlot>(reader, from_tile, (tiles.first + j) * num_vectors, num_vectors);
      for (size_t i = 0; i < kQueries; ++i)
        acc[j][i] = multiply(Words{}, acc[j][i], codes, words[i]);
    }
  }
  if constexpr ((kSlot + 1) * Reader::kWidth < 8) {
    dot_quads<Words, kTiles, kQueries, Reader, kSlot + 1>(reader, tiles, from, to, limbs, acc);
  }
}

// Rows of limbs, and where the sums of their products begin.
template <int kQueries>
struct LimbView {
  LimbBytes limbs;
  ptrdiff_t high;  // of sparse limbs: bytes to the second ones; 0: there are none
  int32_t start[kQueries];
};

template <size_t kTiles, int kQueries>
KVANT_INLINE void start_runs(Run (&runs)[kTiles][kQueries]) {
  for (auto& tile_runs : runs) {
    for (Run& run : tile_runs) run = start_run();
  }
}

// 256 times the products of second limbs. Few quads have one, if any.
template <int kTiles, int kQueries, typename Reader>
KVANT_INLINE void add_high_limbs(const Reader& reader, const Tiles& tiles, int from, int to,
                                 const LimbBytes& high, I32 (&sums)[kTiles][kQueries]) {
  constexpr int kQuads = run_quads(SparseLimbs::kLargest * Reader::kLargest);
  int quad = from;
  while (quad < to) {
    Run runs[kTiles][kQueries];
    start_runs(runs);
    for (int left = kQuads; quad < to && left > 0; ++quad) {
      uint32_t any = 0;
      for (size_t i = 0; i < kQueries; ++i) {
        uint32_t word;
        __builtin_memcpy(&word, high.first + i * high.stride + 4 * quad, sizeof(word));
        any |= word;
      }
      if (any == 0) continue;
      dot_quads<SparseLimbs>(reader, tiles, quad, quad + 1, high, runs);
      --left;
    }
    for (size_t j = 0; j < kTiles; ++j) {
      for (size_t i = 0; i < kQueries; ++i) {
        const I32 sum = add_run(set1(int32_t{0}), runs[j][i]);
        sums[j][i] = add(sums[j][i], times_256(sum));
      }
    }
  }
}

// The integer sums of quads [from, to) of tiles [tile, tile + kTiles).
template <typename Words, int kTiles, int kQueries, typename Reader>
KVANT_INLINE void dot_tiles(const Reader& reader, const OpenPage& page, int tile, int from, int to,
                            const LimbView<kQueries>& rows, I32 (&sums)[kTiles][kQueries]) {
  const Tiles tiles = {.bytes = page.tiles + 64 * tile * page.num_vectors,
                       .first = tile,
                       .num_vectors = page.num_vectors,
                       .asked = page.tiles_share(tile),
                       .ahead = page.ahead};
  if constexpr (Words::kQuadBytes == 8) {
    Acc acc[kTiles][kQueries];
    for (size_t i = 0; i < kQueries; ++i) {
      const Acc start = start_acc(rows.start[i]);
      for (auto& tile_acc : acc) tile_acc[i] = start;
    }
    dot_quads<Words>(reader, tiles, from, to, rows.limbs, acc);
    for (size_t j = 0; j < kTiles; ++j) {
      for (size_t i = 0; i < kQueries; ++i) sums[j][i] = finish(acc[j][i]);
    }
  } else {
    for (size_t i = 0; i < kQueries; ++i) {
      for (auto& tile_sums : sums) tile_sums[i] = set1(rows.start[i]);
    }
    constexpr int kQuads = run_quads(Words::kLargest * Reader::kLargest);
    for (int quad = from; quad < to; quad += kQuads) {
      Run runs[kTiles][kQueries];
      start_runs(runs);
      dot_quads<Words>(reader, tiles, quad, quad + kQuads < to ? quad + kQuads : to, rows.limbs,
                       runs);
      for (size_t j = 0; j < kTiles; ++j) {
        for (size_t i = 0; i < kQueries; ++i) sums[j][i] = add_run(sums[j][i], runs[j][i]);
      }
    }
    if constexpr (Words::kIsSparse) {
      if (rows.high != 0) {
        Tiles read = tiles;
        read.ahead = 0;
        add_high_limbs(reader, read, from, to, {rows.limbs.first + rows.high, rows.limbs.stride},
                       sums);
      }
    }
  }
}

// use(reader) with the reader of the page's codes.
template <typename Use>
KVANT_INLINE void with_reader(const OpenPage& page, const IntPage& stored, Use use) {
  if (stored.levels != nullptr) return use(TableCodes{load_bytes(page.levels)});
  if (needs_two_limbs(stored.bits)) return use(LargeCodes{});
  if (page.width == 1) return use(SplitCodes{page.tiles, page.pairs});
  if (page.width == 8) return use(SmallCodes<8>{});
  if (page.width == 4) return use(SmallCodes<4>{});
  use(SmallCodes<2>{});
}

}  // namespace
}  // namespace kvant::KVANT_ISA
