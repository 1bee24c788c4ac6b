// Rotation as an option of every scalar format: one wrapper around any codec.
//
// A row x becomes H·S·x: S flips signs by a seeded random ±1 per channel, H is the orthonormal
// Hadamard matrix of the largest power of two (at most 256) that divides the width, block by block
// (80 → 16, 96 → 32, 192 → 64). Queries are rotated alike, so scores don't change; weighted sums of
// values stay rotated until finish() turns them back. The signs depend on seed and channel only:
// every layer, head and side of one width shares its rotation.
#pragma once

#include "base/bytes.h"
#include "formats/family.h"
#include "formats/page_kernels.h"

namespace kvant {

// The signs that S has: random ones by the binding's seed, or none, S = 1.
enum class RotationSigns : uint8_t { kSeeded, kNone };

class Rotation {
 public:
  Rotation(int dim, uint64_t seed, RotationSigns signs, Isa isa = active_isa());

  // [num_rows][D], in place. Rows of pages are saturated before.
  void turn(float* rows, size_t num_rows) const;
  // The inverse, of rows that are `stride` apart.
  void turn_back(float* rows, size_t num_rows, size_t stride) const;

 private:
  void transform(float* rows, size_t num_rows, size_t stride) const;

  size_t dim_;
  int block_;
  const PageKernels& kernels_;
  AlignedArray<float> signs_;
};

// A codec of rotated rows around a codec of that binding.
std::unique_ptr<Codec> rotated_codec(std::unique_ptr<Codec> inner, const CodecBinding& binding,
                                     RotationSigns signs);

// True for formats that get a `_rot` variant: those that round, and read nothing but the rows.
bool can_rotate(const FormatInfo& format);

// The rotated variant of a definition.
FormatDefinition rotated_definition(const FormatDefinition& plain);

// Size of the Hadamard blocks that rows of `dim` channels are rotated in.
int rotation_block(int dim);

}  // namespace kvant
