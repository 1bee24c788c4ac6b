// Any format with any finite rows, queries and probabilities gives finite pages and answers; any
// bytes decode.
//
// Input: format, side, width, how rows are made, then raw bytes: float32 bit patterns of the rows
// (cycled; a NaN or an infinity becomes the largest float, as the cache never passes one on), or a
// page to decode.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "formats/family.h"

namespace kvant {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void require_finite(const std::vector<float>& values) {
  for (const float v : values) require(std::isfinite(v));
}

std::vector<float> floats_from(const uint8_t* data, size_t size, size_t count) {
  std::vector<float> out(count, 0.0f);
  for (size_t i = 0; i < count && size >= 4; ++i) {
    std::memcpy(&out[i], data + (i * 4) % (size - 3), 4);
    if (!std::isfinite(out[i])) out[i] = out[i] < 0 ? -3.4e38f : 3.4e38f;
  }
  return out;
}

void read_page(const Codec& codec, Side side, int dim, const std::byte* page) {
  constexpr int kQueries = 2;
  const auto width = static_cast<size_t>(dim);
  std::vector<float> queries(kQueries * (side == Side::kKey ? width : kPageTokens));
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<float>(i % 7) * 0.125f;
  if (side == Side::kKey) {
    std::vector<float> scores(kQueries * kPageTokens, NAN);
    AlignedArray<std::byte> prepared(codec.query_bytes(kQueries));
    codec.prepare_query(queries.data(), kQueries, prepared.data());
    codec.scores(page, prepared.data(), kQueries, 0, scores.data(), kPageTokens);
    require_finite(scores);
  } else {
    std::vector<float> acc(kQueries * width, 0.0f);
    codec.accumulate(page, queries.data(), kPageTokens, kQueries, acc.data(), width);
    codec.finish(acc.data(), kQueries, width);
    require_finite(acc);
  }
}

void fuzz_one(const uint8_t* data, size_t size) {
  if (size < 4) return;
  const auto formats = all_formats();
  const FormatInfo& info = formats[data[0] % formats.size()];
  const Side side = data[1] % 2 ? Side::kKey : Side::kValue;
  const int dim = 16 * (1 + data[2] % 16);
  const bool decode_raw = data[3] % 2;
  data += 4;
  size -= 4;
  const CodecArtifacts artifacts = {.tensor_scale = 0.03f, .tensor = {}};
  CodecBinding binding;
  binding.side = side;
  binding.dim = dim;
  binding.artifacts = &artifacts;
  const auto codec = bind_codec(info, binding);
  if (!codec.ok()) return;
  const size_t count = kPageTokens * static_cast<size_t>(dim);
  AlignedArray<std::byte> page((*codec)->page_bytes());
  std::vector<float> decoded(count);
  if (decode_raw) {
    for (size_t i = 0; i < page.size(); ++i)
      page[i] = std::byte{size ? data[i % size] : uint8_t{0}};
    (*codec)->decode(page.data(), decoded.data());
    return;
  }
  const std::vector<float> rows = floats_from(data, size, count);
  PageInput input;
  input.rows = rows.data();
  (*codec)->encode(input, page.data());
  (*codec)->decode(page.data(), decoded.data());
  require_finite(decoded);
  if (!info.exact) read_page(**codec, side, dim, page.data());
}

}  // namespace
}  // namespace kvant

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvant::fuzz_one(data, size);
  return 0;
}
