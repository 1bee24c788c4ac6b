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

// `at(lane of the page, position along the quads)` is a reference to the row-major code.
template <typename At>
void pack(const Shape& shape, uint8_t* codes, At at) {
  std::memset(codes, 0, code_bytes(shape));
  for_each_quad(shape, codes,
                [&](int group, int quad, uint8_t* vector, int bit, int width, int low_bit) {
                  for (int j = 0; j < 64; ++j) {
                    const unsigned u = at(16 * group + j / 4, 4 * quad + j % 4);
                    const unsigned field = (u >> low_bit) & ((1u << width) - 1);
                    vector[j] = static_cast<uint8_t>(vector[j] | (field << bit));
                  }
                });
}

template <typename At>
void unpack(const Shape& shape, const uint8_t* codes, At at) {
  for_each_quad(shape, codes,
                [&](int group, int quad, const uint8_t* vector, int bit, int width, int low_bit) {
                  for (int j = 0; j < 64; ++j) {
                    const unsigned field =
                        (static_cast<unsigned>(vector[j]) >> bit) & ((1u << width) - 1);
                    uint8_t& u = at(16 * group + j / 4, 4 * quad + j % 4);
                    u = static_cast<uint8_t>(low_bit == 0 ? field : u | (field << low_bit));
                  }
                });
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
  pack(key_shape(bits, dim), codes,
       [&](int token, int i) -> const uint8_t& { return u[token * dim + i]; });
}
void unpack_key_codes(const uint8_t* codes, int bits, int dim, uint8_t* u) {
  unpack(key_shape(bits, dim), codes,
         [&](int token, int i) -> uint8_t& { return u[token * dim + i]; });
}
void pack_value_codes(const uint8_t* u, int bits, int dim, uint8_t* codes) {
  pack(value_shape(bits, dim), codes,
       [&](int channel, int t) -> const uint8_t& { return u[t * dim + channel]; });
}
void unpack_value_codes(const uint8_t* codes, int bits, int dim, uint8_t* u) {
  unpack(value_shape(bits, dim), codes,
         [&](int channel, int t) -> uint8_t& { return u[t * dim + channel]; });
}

size_t float_bytes(FloatType type) {
  constexpr size_t kBytes[] = {4, 2, 2, 1, 1};
  return kBytes[static_cast<size_t>(type)];
}

}  // namespace kvant
