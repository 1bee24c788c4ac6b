// Any format with any finite rows, queries and probabilities gives finite pages and answers, the
// same bits on every instruction set; any bytes decode.
//
// Input: format (2 bytes), side and kind of rows, width, then bytes for rows and queries (cycled),
// or a page to decode.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "formats/family.h"

namespace kvant {
namespace {

// What the third byte asks for.
constexpr int kKeySide = 1;
constexpr int kDecodeOnly = 2;  // the bytes are a page
constexpr int kRawFloats = 4;   // the bytes are float32; else small numbers

constexpr int kDims[] = {16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256};
constexpr int kQueries = 5;  // a block of four, and one

void require(bool condition) {
  if (!condition) std::abort();
}
void require_finite(const std::vector<float>& values) {
  for (const float v : values) require(std::isfinite(v));
}
template <typename T>
void require_same(const T& a, const T& b) {
  require(a.size() == b.size());
  require(a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t operator[](size_t i) const { return size_ == 0 ? uint8_t{0} : data_[i % size_]; }

 private:
  const uint8_t* data_;
  size_t size_;
};

// float32 bit patterns; a NaN or an infinity becomes the largest float, as the cache passes none
// on.
std::vector<float> raw_floats(const Bytes& bytes, size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    const uint8_t pattern[] = {bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]};
    std::memcpy(&out[i], pattern, 4);
    if (!std::isfinite(out[i])) out[i] = std::signbit(out[i]) ? -3.4e38f : 3.4e38f;
  }
  return out;
}
// Sixteenths from -8 to 8.
std::vector<float> small_floats(const Bytes& bytes, size_t first, size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(bytes[first + i])) / 16;
  }
  return out;
}

struct Case {
  const FormatInfo* format;
  Side side;
  int dim;
  bool reads;  // the answers are finite, so they must be the same everywhere
  std::vector<float> rows, queries;
};

struct Answer {
  AlignedArray<std::byte> page;
  std::vector<float> decoded, answers;
};

std::vector<float> scores_of(const Codec& codec, const Case& c, const std::byte* page) {
  std::vector<float> scores(kQueries * kPageTokens, NAN);
  AlignedArray<std::byte> prepared(codec.query_bytes(kQueries));
  codec.prepare_query(c.queries.data(), kQueries, prepared.data());
  codec.scores(page, prepared.data(), kQueries, 0, scores.data(), kPageTokens);
  return scores;
}
std::vector<float> sums_of(const Codec& codec, const Case& c, const std::byte* page) {
  const auto width = static_cast<size_t>(c.dim);
  std::vector<float> sums(kQueries * width, 0.0f);
  codec.accumulate(page, c.queries.data(), kPageTokens, kQueries, sums.data(), width);
  codec.finish(sums.data(), kQueries, width);
  return sums;
}

std::unique_ptr<Codec> bind(const FormatInfo& format, Side side, int dim, Isa isa) {
  std::vector<float> tensor;
  if (const auto& any = definition_of(format).any_artifact) tensor = any(dim);
  const CodecArtifacts artifacts = {.tensor_scale = 0.03f, .tensor = tensor};
  CodecBinding binding;
  binding.side = side;
  binding.dim = dim;
  binding.artifacts = &artifacts;
  binding.isa = isa;
  auto codec = bind_codec(format, binding);
  return codec.ok() ? std::move(*codec) : nullptr;
}

Answer answer(const Codec& codec, const Case& c) {
  Answer out{AlignedArray<std::byte>(codec.page_bytes()), std::vector<float>(c.rows.size()), {}};
  PageInput input;
  input.rows = c.rows.data();
  codec.encode(input, out.page.data());
  codec.decode(out.page.data(), out.decoded.data());
  require_finite(out.decoded);
  if (!c.reads) return out;
  const std::byte* page = out.page.data();
  out.answers = c.side == Side::kKey ? scores_of(codec, c, page) : sums_of(codec, c, page);
  require_finite(out.answers);
  return out;
}

void decode_anything(const Codec& codec, const Bytes& bytes, size_t count) {
  AlignedArray<std::byte> page(codec.page_bytes());
  for (size_t i = 0; i < page.size(); ++i) page[i] = std::byte{bytes[i]};
  std::vector<float> decoded(count);
  codec.decode(page.data(), decoded.data());
}

void fuzz_one(const uint8_t* data, size_t size) {
  if (size < 4) return;
  const auto formats = all_formats();
  Case c;
  c.format = &formats[static_cast<size_t>(data[0] | data[1] << 8) % formats.size()];
  const int flags = data[2];
  c.side = (flags & kKeySide) != 0 ? Side::kKey : Side::kValue;
  c.dim = kDims[data[3] % std::size(kDims)];
  const Bytes bytes(data + 4, size - 4);
  const std::unique_ptr<Codec> scalar = bind(*c.format, c.side, c.dim, Isa::kScalar);
  if (scalar == nullptr) return;
  const size_t count = kPageTokens * static_cast<size_t>(c.dim);
  if ((flags & kDecodeOnly) != 0) return decode_anything(*scalar, bytes, count);

  const bool raw = (flags & kRawFloats) != 0;
  c.reads = !raw || !c.format->exact;  // an exact page holds what overflows a sum
  c.rows = raw ? raw_floats(bytes, count) : small_floats(bytes, 0, count);
  c.queries = small_floats(bytes, count,
                           kQueries * (c.side == Side::kKey ? static_cast<size_t>(c.dim)
                                                            : static_cast<size_t>(kPageTokens)));
  if (c.side == Side::kValue) {
    for (float& p : c.queries) p = std::fabs(p) / 8;  // probabilities
  }
  const Answer wanted = answer(*scalar, c);
  for (const Isa isa : supported_isas()) {
    if (isa == Isa::kScalar) continue;
    const Answer found = answer(*bind(*c.format, c.side, c.dim, isa), c);
    require_same(found.page, wanted.page);
    require_same(found.decoded, wanted.decoded);
    require_same(found.answers, wanted.answers);
  }
}

}  // namespace
}  // namespace kvant

// Coverage hardly tells one format from another, so mutations go through the whole registry: every
// fourth draws format, side, rows and width anew.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  kvant::Rng rng(seed);
  if (size >= 4 && rng.below(4) == 0) {
    for (size_t i = 0; i < 4; ++i) data[i] = static_cast<uint8_t>(rng.below(256));
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvant::fuzz_one(data, size);
  return 0;
}
