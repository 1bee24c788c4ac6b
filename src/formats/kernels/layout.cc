// Where the codes of a page lie: sizes, packing and unpacking, by the layout that
// formats/page_kernels.h describes. K and V differ only in what a quad is: four dims of one token,
// or four tokens of one channel.
#include <cstring>

#include "formats/kernels/numerics.h"
#include "formats/page_kernels.h"

namespace kvant {
namespace {

constexpr int kTokens = 64;

// A side's page as `num_groups` groups of 16 lanes, each lane holding `num_quads` quads of codes.
struct Shape {
  int bits;
  int num_groups;
  int num_quads;
};

Shape key_shape(int bits, int dim) { return {bits, kTokens / 16, dim / 4}; }
Shape value_shape(int bits, int dim) { return {bits, dim / 16, kTokens / 4}; }

size_t code_bytes(const Shape& shape) {
  const Planes planes = planes_of(shape.bits);
  int vectors = 0;
  for (int p = 0; p < planes.count; ++p) {
    vectors += shape.num_groups * plane_vectors(planes.width[p], shape.num_quads);
  }
  return 64 * static_cast<size_t>(vectors);
}

// Calls visit(group, quad, vector of 64 bytes, bit in the byte, width, low bit of the code) for
// every quad and plane.
template <typename Byte, typename Visit>
void for_each_quad(const Shape& shape, Byte* codes, Visit visit) {
  const Planes planes = planes_of(shape.bits);
  for (int p = 0, low_bit = 0; p < planes.count; low_bit += planes.width[p++]) {
    const int width = planes.width[p];
    const int nv = plane_vectors(width, shape.num_quads);
    for (int group = 0; group < shape.num_groups; ++group, codes += 64 * nv) {
      for (int quad = 0; quad < shape.num_quads; ++quad) {
        visit(group, quad, codes + 64 * (quad % nv), width * (quad / nv), width, low_bit);
      }
    }
  }
}

// The four bytes of a quad, 16 lanes of them, as they lie in a vector.
struct Quads {
  uint64_t words[8];
  uint8_t* bytes() { return reinterpret_cast<uint8_t*>(words); }
};

// Every byte of a word.
constexpr uint64_t in_each_byte(unsigned byte) { return uint64_t{0x0101010101010101} * byte; }

// Fields never leave their bytes, so eight are moved at once. `read(group, quad, out)` gives the
// codes of a quad of 16 lanes.
template <typename Read>
void pack(const Shape& shape, uint8_t* codes, Read read) {
  std::memset(codes, 0, code_bytes(shape));
  for_each_quad(shape, codes,
                [&](int group, int quad, uint8_t* vector, int bit, int width, int low_bit) {
                  Quads quads;
                  read(group, quad, quads.bytes());
                  const uint64_t mask = in_each_byte((1u << width) - 1);
                  for (size_t i = 0; i < 8; ++i) {
                    uint64_t word;
                    std::memcpy(&word, vector + 8 * i, sizeof(word));
                    word |= ((quads.words[i] >> low_bit) & mask) << bit;
                    std::memcpy(vector + 8 * i, &word, sizeof(word));
                  }
                });
}

// `add(group, quad, bytes)` adds bits to the codes of a quad of 16 lanes.
template <typename Add>
void unpack(const Shape& shape, const uint8_t* codes, Add add) {
  for_each_quad(shape, codes,
                [&](int group, int quad, const uint8_t* vector, int bit, int width, int low_bit) {
                  Quads quads;
                  std::memcpy(quads.words, vector, sizeof(quads.words));
                  const uint64_t mask = in_each_byte((1u << width) - 1);
                  for (uint64_t& word : quads.words) word = ((word >> bit) & mask) << low_bit;
                  add(group, quad, quads.bytes());
                });
}

// Where a quad's codes are in rows of `dim`, [token][dim]: of K four neighbours of each of 16
// tokens, of V 16 neighbours of each of four tokens.
size_t key_quad(int group, int quad, int dim) {
  return static_cast<size_t>(16 * group * dim + 4 * quad);
}
size_t value_quad(int group, int quad, int dim) {
  return static_cast<size_t>(4 * quad * dim + 16 * group);
}

}  // namespace

size_t key_code_bytes(int bits, int dim) { return code_bytes(key_shape(bits, dim)); }
size_t value_code_bytes(int bits, int dim) { return code_bytes(value_shape(bits, dim)); }

bool int_dim_fits(int bits, int offset, int dim) {
  const int64_t top = (int64_t{1} << bits) - 1;
  const int64_t largest = offset > top - offset ? offset : top - offset;
  return dim > 0 && dim % 16 == 0 && dim <= kMaxIntDim &&
         static_cast<int64_t>(kTwoLimbMax) * dim * largest < (int64_t{1} << 31);
}

void pack_key_codes(const uint8_t* u, int bits, int dim, uint8_t* codes) {
  const auto stride = static_cast<size_t>(dim);
  pack(key_shape(bits, dim), codes, [&](int group, int quad, uint8_t* out) {
    const uint8_t* from = u + key_quad(group, quad, dim);
    for (size_t t = 0; t < 16; ++t) std::memcpy(out + 4 * t, from + t * stride, 4);
  });
}
void unpack_key_codes(const uint8_t* codes, int bits, int dim, uint8_t* u) {
  const auto stride = static_cast<size_t>(dim);
  std::memset(u, 0, kTokens * stride);
  unpack(key_shape(bits, dim), codes, [&](int group, int quad, const uint8_t* from) {
    uint8_t* to = u + key_quad(group, quad, dim);
    for (size_t t = 0; t < 16; ++t) {
      uint32_t all, more;
      std::memcpy(&all, to + t * stride, 4);
      std::memcpy(&more, from + 4 * t, 4);
      all |= more;
      std::memcpy(to + t * stride, &all, 4);
    }
  });
}
void pack_value_codes(const uint8_t* u, int bits, int dim, uint8_t* codes) {
  const auto stride = static_cast<size_t>(dim);
  pack(value_shape(bits, dim), codes, [&](int group, int quad, uint8_t* out) {
    const uint8_t* from = u + value_quad(group, quad, dim);
    for (size_t c = 0; c < 16; ++c) {
      for (size_t t = 0; t < 4; ++t) out[4 * c + t] = from[t * stride + c];
    }
  });
}
void unpack_value_codes(const uint8_t* codes, int bits, int dim, uint8_t* u) {
  const auto stride = static_cast<size_t>(dim);
  std::memset(u, 0, kTokens * stride);
  unpack(value_shape(bits, dim), codes, [&](int group, int quad, const uint8_t* from) {
    uint8_t* to = u + value_quad(group, quad, dim);
    for (size_t c = 0; c < 16; ++c) {
      for (size_t t = 0; t < 4; ++t)
        to[t * stride + c] = static_cast<uint8_t>(to[t * stride + c] | from[4 * c + t]);
    }
  });
}

size_t float_bytes(FloatType type) {
  constexpr size_t kBytes[] = {4, 2, 2, 1, 1};
  return kBytes[static_cast<size_t>(type)];
}

}  // namespace kvant
