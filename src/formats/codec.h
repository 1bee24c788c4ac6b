// The codec: what every format is to the rest of Kvant.
//
// A codec is bound once per layer, KV head and side. It turns 64 exact rows into a fixed number of
// bytes (encode), and computes with those bytes where they lie: scores of queries against a K page,
// weighted sums of a V page. It owns no page and keeps no state between calls, so every const
// method may be called from any thread.
//
// Shapes use T = kPageTokens = 64 and D = dim. Tiles are row-major [T][D] float32 unless a comment
// says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvant/format.h"
#include "kvant/status.h"
#include "simd/cpu.h"

namespace kvant {

// Rotary embedding of a layer, for formats that store K before RoPE. Pair j = channels (j, j +
// num_pairs).
struct RopeView {
  const float* inv_freq = nullptr;  // [num_pairs]
  int num_pairs = 0;
  float attention_factor = 1.0f;  // scales cos and sin (YaRN, longrope)
};

// Calibrated tensors of one layer, head and side, or given scales.
struct CodecArtifacts {
  float tensor_scale = 1.0f;      // for kTensor formats; > 0 and finite
  float head_scale = 0;           // for kHead formats, in place of each page's own; 0: none given
  std::span<const float> tensor;  // a format's own numbers, in the order that its file documents
};

struct CodecBinding {
  int layer = 0;
  int kv_head = 0;
  Side side = Side::kKey;
  int dim = 0;  // D
  uint64_t seed =
      0;  // of rotations: mixed with nothing else, so that layers share one rotation per width
  RopeView rope;
  const CodecArtifacts* artifacts = nullptr;  // only read while binding; nullptr: none given
  Isa isa = active_isa();
};

// What encode() reads. Pointers that the format's FormatNeeds don't ask for may be null.
struct PageInput {
  const float* rows = nullptr;            // [T][D], exactly the values that the cache stores
  int64_t first_position = 0;             // of row 0, in tokens from the sequence's start
  const float* pre_rope_rows = nullptr;   // [T][D]
  const float* previous_layer = nullptr;  // [T][D], decoded
  const float* key_rows = nullptr;        // [T][K dim], decoded
};

// A sealed page to read, and what will be read after it: while it computes, a codec may ask the
// memory for as many bytes of that as it reads itself.
struct PageRead {
  PageRead(const std::byte* page, std::span<const std::byte> then = {}) : bytes(page), next(then) {}
  const std::byte* bytes;
  std::span<const std::byte> next;
};

class Codec {
 public:
  virtual ~Codec() = default;

  // Bytes of one sealed page, a multiple of 64.
  virtual size_t page_bytes() const = 0;

  // Encodes 64 rows. `page` is 64-byte aligned and page_bytes() long; every byte of it is written.
  // Rows are finite (the cache rejects NaN and infinity before); finite overflow saturates.
  virtual void encode(const PageInput& input, std::byte* page) const = 0;

  // The specification: the rows that the page stands for, in the model's own basis. [T][D].
  virtual void decode(const std::byte* page, float* rows) const = 0;

  // --- K side. A query is prepared once and then asked against many pages.
  // Bytes of the prepared form of `num_queries` queries; a multiple of 64.
  virtual size_t query_bytes(int num_queries) const = 0;
  // queries: [num_queries][D], already multiplied by the softmax scale.
  virtual void prepare_query(const float* queries, int num_queries, std::byte* prepared) const = 0;
  // scores[i·stride + t] = q_i · k_t for all 64 tokens. `first_position` is the page's, for formats
  // that apply RoPE on read. A query's scores don't depend on the other queries of the call, to the
  // bit.
  virtual void scores(const PageRead& page, const std::byte* prepared, int num_queries,
                      int64_t first_position, float* scores, size_t stride) const = 0;

  // --- V side.
  // acc[i·stride_acc + c] += Σ_t p[i·stride_p + t] · v_t[c], in the codec's own basis. p ≥ 0,
  // [num_queries][T]. A query's result doesn't depend on the other queries of the call, to the bit.
  virtual void accumulate(const PageRead& page, const float* p, size_t stride_p, int num_queries,
                          float* acc, size_t stride_acc) const = 0;
  // Turns sums in the codec's basis into the model's basis, in place (an inverse rotation; nothing
  // for most). acc: [num_queries][D] with a row stride of `stride`.
  virtual void finish(float* acc, int num_queries, size_t stride) const {
    (void)acc, (void)num_queries, (void)stride;
  }

  // The name of the code that scores()/accumulate() run, for `kvant formats` and doctor:
  // "int8/avx2".
  virtual std::string kernel_name() const = 0;
  // False where pages are read one decoded row at a time: right, and several times slower than
  // formats of the same size. Users are told.
  virtual bool has_kernel() const { return true; }
};

// True of formats that can't do without a given scale (`_tensor`), and of those that take one for
// each head in place of each page's own (`_head` without a zero point).
bool takes_given_scale(const FormatInfo& format);

// unsupported: what to say where a format of scale source kGiven has no scale.
Status missing_scale(const FormatInfo& format);

// Makes the codec of `format` for one layer, head and side. unsupported if the format can't serve
// this side, width or lacks an artifact: one sentence that names format, value and what works.
Result<std::unique_ptr<Codec>> bind_codec(const FormatInfo& format, const CodecBinding& binding);

// The same with a scale and artifacts that mean nothing, where the format wants some: for its
// sizes, and for what it runs.
Result<std::unique_ptr<Codec>> bind_any(const FormatInfo& format, Side side, int dim);

}  // namespace kvant
