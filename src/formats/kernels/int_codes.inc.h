// Part of page_kernels.inc.h: the codes of integer pages, from the bytes of a page to sums of
// products.
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
  int width;        // 8, 4 or 2: bits of a code in the tiles
  int num_vectors;  // of a tile
  ptrdiff_t ahead;  // from a tile to what is asked for while it is read
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
  open.ahead = as_they_lie ? distance_ahead(page.codes, page.next) : 0;
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

// Adds the dot products of quads [from, to) of kTiles neighbouring tiles with kQueries rows of
// limbs, `stride` bytes apart. A tile is `num_vectors` vectors, each holding a quad in every field
// of the reader's width. What is loaded first is asked for `ahead` bytes further on, too.
template <int kTiles, int kQueries, typename Reader, int kSlot = 0>
KVANT_INLINE void dot_quads(const Reader& reader, const uint8_t* tile, ptrdiff_t ahead,
                            int num_vectors, int from, int to, const std::byte* limbs,
                            size_t stride, Acc (&acc)[kTiles][kQueries]) {
  const int first = from > kSlot * num_vectors ? from : kSlot * num_vectors;
  const int last = to < (kSlot + 1) * num_vectors ? to : (kSlot + 1) * num_vectors;
  const uint8_t* vector = tile + 64 * (first - kSlot * num_vectors);
  const std::byte* quad_limbs = limbs + 8 * first;
  // Unrolled, GCC sums the products of several quads before it adds them to the accumulators, and
  // runs out of registers.
#pragma GCC unroll 1
  for (int quad = first; quad < last; ++quad, vector += 64, quad_limbs += 8) {
    Limbs words[kQueries];
    for (size_t i = 0; i < kQueries; ++i) words[i] = load_limbs(quad_limbs + i * stride);
    for (int j = 0; j < kTiles; ++j) {
      const uint8_t* from_tile = vector + 64 * j * num_vectors;
      if constexpr (kSlot == 0) ask_for_later(tile + 64 * (kTiles * quad + j), ahead);
      const Codes codes = read_codes<kSlot>(reader, load_bytes(from_tile));
      for (size_t i = 0; i < kQueries; ++i) acc[j][i] = dot(acc[j][i], codes, words[i]);
    }
  }
  if constexpr ((kSlot + 1) * Reader::kWidth < 8) {
    dot_quads<kTiles, kQueries, Reader, kSlot + 1>(reader, tile, ahead, num_vectors, from, to,
                                                   limbs, stride, acc);
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

}  // namespace
}  // namespace kvant::KVANT_ISA
