#include "model/weight_pages.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/float_types.h"
#include "model/matrix.h"
#include "simd/cpu.h"

namespace kvant {
namespace {

constexpr int kBlock = 32;  // inputs that share a scale, in every type here
constexpr auto kRows = static_cast<size_t>(WeightPages::kPageRows);

// Blocks of 32 weights as GGUF files hold them, little endian: binary16 d, binary16 m (where there
// is a zero point), 32 fifth bits (of 5 bits), then 16 bytes of which the low halves are weights 0
// to 15 and the high ones 16 to 31, or 32 signed bytes. Without zero points the codes are counted
// from their middle.
struct BlockType {
  uint32_t type;
  int bits;
  bool has_zero;

  size_t codes_at() const { return (has_zero ? 4u : 2u) + (bits == 5 ? 4u : 0u); }
  size_t bytes() const { return codes_at() + (bits == 8 ? 32 : 16); }
  int offset() const { return has_zero ? 0 : 1 << (bits - 1); }
};
constexpr std::array<BlockType, 5> kBlockTypes = {{
    {GGML_TYPE_Q4_0, 4, false},
    {GGML_TYPE_Q4_1, 4, true},
    {GGML_TYPE_Q5_0, 5, false},
    {GGML_TYPE_Q5_1, 5, true},
    {GGML_TYPE_Q8_0, 8, false},
}};

const BlockType* find_type(uint32_t type) {
  const auto* found = std::find_if(kBlockTypes.begin(), kBlockTypes.end(),
                                   [type](const BlockType& t) { return t.type == type; });
  return found == kBlockTypes.end() ? nullptr : found;
}

uint16_t read_half(const std::byte* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return half;
}

// The 32 codes of a block, counted from 0.
void read_codes(const BlockType& type, const std::byte* block, uint8_t* u) {
  const std::byte* codes = block + type.codes_at();
  if (type.bits == 8) {
    for (size_t i = 0; i < kBlock; ++i) u[i] = static_cast<uint8_t>(codes[i]) ^ 0x80;
    return;
  }
  for (size_t i = 0; i < kBlock / 2; ++i) {
    const auto both = static_cast<uint8_t>(codes[i]);
    u[i] = both & 15;
    u[i + kBlock / 2] = both >> 4;
  }
  if (type.bits != 5) return;
  uint32_t fifth;
  std::memcpy(&fifth, codes - sizeof fifth, sizeof fifth);
  for (size_t i = 0; i < kBlock; ++i) u[i] |= static_cast<uint8_t>((fifth >> i & 1) << 4);
}

// The widest tile whose exact sums fit into 32 bits (int_dim_fits).
int64_t widest_tile(int bits) { return bits == 8 ? kMaxIntDim / 2 : kMaxIntDim; }

}  // namespace

bool WeightPages::can_hold(uint32_t type, int64_t cols) {
  return find_type(type) != nullptr && cols > 0 && cols % kBlock == 0;
}

std::shared_ptr<std::byte[]> WeightPages::Memory::take(size_t bytes) {
  constexpr size_t kPiece = size_t{16} << 20;
  if (piece_ == nullptr || bytes > piece_->size() - used_) {
    piece_ = std::make_shared<AlignedArray<std::byte>>(std::max(kPiece, bytes));
    used_ = 0;
  }
  std::byte* const at = piece_->data() + used_;
  used_ = std::min(piece_->size(), round_up(used_ + bytes, kAlignment));
  return {piece_, at};
}

WeightPages::WeightPages(uint32_t type, int64_t rows, int64_t cols, Memory& memory)
    : rows_(rows),
      cols_(cols),
      bits_(find_type(type)->bits),
      has_zero_(find_type(type)->has_zero),
      kernels_(page_kernels(active_isa())) {
  const int64_t most = widest_tile(bits_);
  const int64_t num_tiles = (cols + most - 1) / most;
  const auto width = static_cast<int64_t>(
      round_up(static_cast<size_t>((cols + num_tiles - 1) / num_tiles), kBlock));
  for (int64_t first = 0; first < cols; first += width) {
    Tile tile = {.first = static_cast<int>(first),
                 .dim = static_cast<int>(std::min(width, cols - first)),
                 .code_bytes = 0,
                 .page_at = page_bytes_,
                 .prepared_at = record_bytes_};
    tile.code_bytes = key_code_bytes(bits_, tile.dim);
    page_bytes_ += tile.code_bytes + scale_bytes(tile);
    record_bytes_ += kernels_.int_query_bytes(1, shape_of(tile));
    tiles_.push_back(tile);
  }
  memory_ = memory.take(static_cast<size_t>(num_pages()) * page_bytes_);
}

std::shared_ptr<const WeightPages> WeightPages::make(const Matrix& matrix, Memory& memory,
                                                     ThreadPool& threads) {
  const std::shared_ptr<WeightPages> out(
      new WeightPages(matrix.type, matrix.rows, matrix.cols, memory));
  threads.run(static_cast<size_t>(out->num_pages()),
              [&](size_t page, int) { out->fill_page(matrix, static_cast<int64_t>(page)); });
  return out;
}

void WeightPages::fill_page(const Matrix& matrix, int64_t page) {
  const BlockType& type = *find_type(matrix.type);
  const auto first_row = page * kPageRows;
  const auto count = static_cast<size_t>(std::min(kPageRows, rows_ - first_row));
  std::byte* const out = memory_.get() + static_cast<size_t>(page) * page_bytes_;
  std::vector<uint8_t> u;
  for (const Tile& tile : tiles_) {
    const auto dim = static_cast<size_t>(tile.dim), groups = dim / kBlock;
    u.assign(kRows * dim, 0);
    std::vector<uint16_t> scale(groups * kRows, 0), zero(groups * kRows, 0);
    for (size_t r = 0; r < count; ++r) {
      const std::byte* block = matrix.row(first_row + static_cast<int64_t>(r)) +
                               static_cast<size_t>(tile.first) / kBlock * type.bytes();
      for (size_t g = 0; g < groups; ++g, block += type.bytes()) {
        read_codes(type, block, u.data() + r * dim + g * kBlock);
        scale[g * kRows + r] = read_half(block);
        if (has_zero_) zero[g * kRows + r] = read_half(block + 2);
      }
    }
    std::byte* at = out + tile.page_at;
    pack_key_codes(u.data(), bits_, tile.dim, reinterpret_cast<uint8_t*>(at));
    std::memcpy(at + tile.code_bytes, scale.data(), scale.size() * sizeof(uint16_t));
    if (!has_zero_) continue;
    at += tile.code_bytes + scale.size() * sizeof(uint16_t);
    std::memcpy(at, zero.data(), zero.size() * sizeof(uint16_t));
  }
}

size_t WeightPages::scale_bytes(const Tile& tile) const {
  return static_cast<size_t>(tile.dim / kBlock) * kRows * sizeof(uint16_t) * (has_zero_ ? 2 : 1);
}

IntShape WeightPages::shape_of(const Tile& tile) const {
  return {bits_, tile.dim, tile.dim / kBlock, ScaleLayout::kToken};
}

IntPage WeightPages::page_of(const Tile& tile, const std::byte* page) const {
  const std::byte* codes = page + tile.page_at;
  const auto* scale = reinterpret_cast<const uint16_t*>(codes + tile.code_bytes);
  const int groups = tile.dim / kBlock;
  return {.codes = reinterpret_cast<const uint8_t*>(codes),
          .scale = scale,
          .zero = has_zero_ ? scale + static_cast<size_t>(groups) * kRows : nullptr,
          .factor = nullptr,
          .bits = bits_,
          .offset = has_zero_ ? 0 : 1 << (bits_ - 1),
          .dim = tile.dim,
          .num_groups = groups,
          .layout = ScaleLayout::kToken};
}

void WeightPages::prepare(const float* x, size_t row, size_t num_rows, std::byte* prepared) const {
  for (const Tile& tile : tiles_) {
    const IntShape shape = shape_of(tile);
    const size_t record = kernels_.int_query_bytes(1, shape);
    kernels_.int_prepare_query(x + tile.first, 1, shape,
                               prepared + num_rows * tile.prepared_at + row * record);
  }
}

void WeightPages::multiply(int64_t page, const std::byte* prepared, int num_rows, float* out,
                           size_t stride) const {
  alignas(kAlignment) std::array<float, kMostRows * kRows> part;
  const auto count = static_cast<size_t>(num_rows);
  for (size_t t = 0; t < tiles_.size(); ++t) {
    const Tile& tile = tiles_[t];
    const std::byte* const from = at(page);
    IntPage view = page_of(tile, from);
    // The kernel asks for the bytes of the next codes' place; those of the scales are a fifth.
    const bool is_last = t + 1 == tiles_.size();
    if (!is_last || page + 1 < num_pages()) {
      const Tile& next = tiles_[is_last ? 0 : t + 1];
      const std::byte* const codes = from + (is_last ? page_bytes_ : 0) + next.page_at;
      view.next = reinterpret_cast<const uint8_t*>(codes);
      prefetch({codes + next.code_bytes, scale_bytes(next)});
    }
    const std::byte* records = prepared + count * tile.prepared_at;
    if (t == 0) {
      kernels_.int_key_scores(view, records, num_rows, out, stride);
      continue;
    }
    kernels_.int_key_scores(view, records, num_rows, part.data(), kRows);
    for (size_t i = 0; i < count; ++i) {
      for (size_t r = 0; r < kRows; ++r) out[i * stride + r] += part[i * kRows + r];
    }
  }
}

void WeightPages::to_floats(int64_t page, int64_t count, float* out) const {
  std::vector<uint8_t> u;
  for (const Tile& tile : tiles_) {
    const IntPage view = page_of(tile, at(page));
    const auto dim = static_cast<size_t>(tile.dim);
    u.resize(kRows * dim);
    unpack_key_codes(view.codes, bits_, tile.dim, u.data());
    for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
      float* row = out + r * static_cast<size_t>(cols_) + static_cast<size_t>(tile.first);
      const uint8_t* codes = u.data() + r * dim;
      for (size_t g = 0; g < dim / kBlock; ++g) {
        const float scale = f16_to_f32(view.scale[g * kRows + r]);
        const float zero = has_zero_ ? f16_to_f32(view.zero[g * kRows + r]) : 0.0f;
        for (size_t i = g * kBlock; i < (g + 1) * kBlock; ++i)
          row[i] = static_cast<float>(codes[i] - view.offset) * scale + zero;
      }
    }
  }
}

}  // namespace kvant
