// A small model whose answers really depend on the cache: layers of attention over hashed
// projections, and a tokenizer of bytes. It computes every row alone in float, so whatever differs
// between two runs comes from the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kvant/cache.h"
#include "model/model.h"

namespace kvant::toy {

inline constexpr int kHidden = 64, kHeads = 4, kKvHeads = 2, kDim = 32;
inline constexpr int kVocab = 258, kBos = 256, kEnd = 257;

// Ids 0 to 255 are bytes. Like real tokenizers with byte fallback: bytes that don't make a
// character decode to U+FFFD.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, SpecialTokens special) const override {
    std::vector<int32_t> ids;
    if (special == SpecialTokens::kAdd) ids.push_back(kBos);
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string bytes;
    for (int32_t id : ids) {
      if (id >= 0 && id < 256) bytes += static_cast<char>(id);
    }
    return replace_invalid(bytes);
  }
  std::string token_bytes(int32_t id, bool) const override {
    return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : "";
  }
  std::string_view piece(int32_t) const override { return "?"; }
  bool is_special(int32_t id) const override { return id >= 256; }
  int vocab_size() const override { return kVocab; }
  std::optional<int32_t> bos() const override { return kBos; }
  std::optional<int32_t> eos() const override { return kEnd; }
  std::span<const int32_t> end_of_generation() const override { return ends_; }
  std::string_view chat_template() const override { return ""; }
  std::string description() const override { return "bytes"; }

 private:
  // The length of the well-formed character at `at` (RFC 3629), 0 if there is none.
  static size_t character(std::string_view s, size_t at) {
    const auto byte = [&](size_t i) {
      return at + i < s.size() ? static_cast<unsigned char>(s[at + i]) : 0u;
    };
    const unsigned lead = byte(0);
    if (lead < 0x80) return 1;
    const size_t n =
        lead >= 0xf0 && lead <= 0xf4
            ? 4
            : (lead >= 0xe0 && lead < 0xf0 ? 3 : (lead >= 0xc2 && lead < 0xe0 ? 2 : 0));
    for (size_t i = 1; i < n; ++i) {
      if ((byte(i) & 0xc0u) != 0x80u) return 0;
    }
    if (lead == 0xe0 && byte(1) < 0xa0) return 0;
    if (lead == 0xed && byte(1) >= 0xa0) return 0;
    if (lead == 0xf0 && byte(1) < 0x90) return 0;
    if (lead == 0xf4 && byte(1) >= 0x90) return 0;
    return n;
  }
  static std::string replace_invalid(std::string_view s) {
    std::string out;
    for (size_t at = 0; at < s.size();) {
      const size_t n = character(s, at);
      out += n > 0 ? s.substr(at, n) : std::string_view("\xef\xbf\xbd");
      at += std::max<size_t>(n, 1);
    }
    return out;
  }
  std::vector<int32_t> ends_ = {kEnd};
};

struct ToyOptions {
  int64_t max_positions = 4096;
  int layers = 2;
  std::vector<int> biased_layers = {};  // their K has a huge constant on three channels
  int window = 0;                       // of layer 0
  float sharpness = 1;                  // of the logits
  int damaged_head = -1;                // this query head's output is wrong...
  float damage_rate = 0;                // ... at this share of positions, when the cache isn't bf16
};

class ToyModel : public Model {
 public:
  explicit ToyModel(ToyOptions options = {}) : options_(options) {
    info_.name = "toy";
    info_.architecture = "toy";
    info_.num_layers = options.layers;
    info_.hidden_size = kHidden;
    info_.num_query_heads = kHeads;
    info_.vocab_size = kVocab;
    info_.max_positions = options.max_positions;
    for (int l = 0; l < options.layers; ++l) {
      CacheLayer layer;
      layer.num_kv_heads = kKvHeads;
      layer.key_dim = layer.value_dim = kDim;
      layer.window = l == 0 ? options.window : 0;
      info_.cache_layers.push_back(layer);
      info_.layer_shapes.push_back({kKvHeads, kDim, kDim, layer.window, true});
    }
    embedding_ = random(kVocab * kHidden, 1, 1);
    for (int l = 0; l < options.layers; ++l) {
      const auto seed = static_cast<uint64_t>(10 * (l + 1));
      const float scale = 1 / std::sqrt(static_cast<float>(kHidden));
      wq_.push_back(random(kHeads * kDim * kHidden, seed, 2 * scale));
      wk_.push_back(random(kKvHeads * kDim * kHidden, seed + 1, 2 * scale));
      wv_.push_back(random(kKvHeads * kDim * kHidden, seed + 2, scale));
      wo_.push_back(random(kHidden * kHeads * kDim, seed + 3, scale));
    }
  }

  const ModelInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }

  Status forward(KvCache& cache, std::span<const ForwardItem> items, float* hidden) override {
    ++num_forwards;
    std::vector<StepItem> batch;
    std::vector<int64_t> positions;
    std::vector<float> x;
    for (const ForwardItem& item : items) {
      batch.push_back({item.sequence, static_cast<int>(item.tokens.size())});
      KVANT_ASSIGN(const int64_t length, cache.length(item.sequence));
      for (size_t i = 0; i < item.tokens.size(); ++i) {
        positions.push_back(length + static_cast<int64_t>(i));
        embed(item.tokens[i], positions.back(), x);
        ++num_tokens;
      }
    }
    KVANT_TRY(cache.begin_step(batch));
    const Status status = layers(cache, positions, x);
    if (!status.ok()) {
      cache.abort_step();
      return status;
    }
    KVANT_TRY(cache.end_step());
    std::copy(x.begin(), x.end(), hidden);
    return {};
  }

  Status logits(const float* hidden, int num_rows, Dense, float* out) override {
    for (int r = 0; r < num_rows; ++r) {
      multiply(embedding_, hidden + r * kHidden, kVocab, kHidden, out + r * kVocab);
      for (int i = 0; i < kVocab; ++i) out[r * kVocab + i] *= options_.sharpness / 8;
    }
    return {};
  }

  int num_forwards = 0;    // calls
  int64_t num_tokens = 0;  // that were fed

 private:
  static std::vector<float> random(size_t n, uint64_t seed, float scale) {
    Rng rng(seed);
    std::vector<float> v(n);
    for (float& f : v) f = scale * rng.normal();
    return v;
  }
  // Eight rows at once: one sum waits for its last addition, eight don't wait for one another. Each
  // adds in the order of the columns.
  static void multiply(const std::vector<float>& w, const float* x, size_t rows, size_t columns,
                       float* out) {
    const size_t eights = rows - rows % 8;
    for (size_t r = 0; r < eights; r += 8) multiply_rows<8>(&w[r * columns], x, columns, out + r);
    for (size_t r = eights; r < rows; ++r) multiply_rows<1>(&w[r * columns], x, columns, out + r);
  }
  template <size_t kRows>
  static void multiply_rows(const float* w, const float* x, size_t columns, float* out) {
    float sums[kRows] = {};
    for (size_t c = 0; c < columns; ++c) {
      for (size_t r = 0; r < kRows; ++r) sums[r] += w[r * columns + c] * x[c];
    }
    std::copy_n(sums, kRows, out);
  }
  void embed(int32_t token, int64_t position, std::vector<float>& x) const {
    for (int c = 0; c < kHidden; ++c) {
      const double angle =
          static_cast<double>(position) * std::pow(1000.0, -c / static_cast<double>(kHidden));
      x.push_back(embedding_[static_cast<size_t>(token * kHidden + c)] +
                  0.5f * static_cast<float>(c % 2 ? std::cos(angle) : std::sin(angle)));
    }
  }
  Status layers(KvCache& cache, const std::vector<int64_t>& positions, std::vector<float>& x) {
    const size_t n = positions.size();
    std::vector<float> q(n * kHeads * kDim), k(n * kKvHeads * kDim), v(k.size()), out(q.size()),
        y(kHidden);
    for (size_t l = 0; l < wq_.size(); ++l) {
      for (size_t i = 0; i < n; ++i) {
        multiply(wq_[l], &x[i * kHidden], kHeads * kDim, kHidden, &q[i * kHeads * kDim]);
        multiply(wk_[l], &x[i * kHidden], kKvHeads * kDim, kHidden, &k[i * kKvHeads * kDim]);
        multiply(wv_[l], &x[i * kHidden], kKvHeads * kDim, kHidden, &v[i * kKvHeads * kDim]);
      }
      const int layer = static_cast<int>(l);
      bias(layer, k);
      KVANT_TRY(cache.append(layer, k.data(), v.data()));
      AttentionParams params;
      params.num_query_heads = kHeads;
      params.scale = 1 / std::sqrt(static_cast<float>(kDim));
      KVANT_TRY(cache.attend(layer, q.data(), params, out.data()));
      for (size_t i = 0; i < n; ++i) {
        damage(cache, layer, positions[i], &out[i * kHeads * kDim]);
        multiply(wo_[l], &out[i * kHeads * kDim], kHidden, kHeads * kDim, y.data());
        for (size_t c = 0; c < kHidden; ++c) x[i * kHidden + c] += y[c];
      }
    }
    return {};
  }
  void bias(int layer, std::vector<float>& k) const {
    const std::vector<int>& biased = options_.biased_layers;
    if (std::find(biased.begin(), biased.end(), layer) == biased.end()) return;
    for (size_t row = 0; row < k.size(); row += kDim) {
      for (const size_t channel : {3, 11, 30}) k[row + channel] += 500;
    }
  }
  void damage(const KvCache& cache, int layer, int64_t position, float* out) const {
    if (options_.damaged_head < 0 || layer != 0 || cache.options().layers[0].formats.key == "bf16")
      return;
    const double draw = static_cast<double>(mix64(static_cast<uint64_t>(position)) >> 11) * 0x1p-53;
    if (draw >= static_cast<double>(options_.damage_rate)) return;
    for (int c = 0; c < kDim; ++c)
      out[options_.damaged_head * kDim + c] = static_cast<float>(c % 3) - 1;
  }

  ToyOptions options_;
  ModelInfo info_;
  ByteTokenizer tokenizer_;
  std::vector<float> embedding_;
  std::vector<std::vector<float>> wq_, wk_, wv_, wo_;
};

// The cache of a toy model in one format.
inline CacheOptions cache_options(const Model& model, const FormatPair& formats, int sinks = 64) {
  CacheOptions options;
  options.layers = model.info().cache_layers;
  for (CacheLayer& layer : options.layers) layer.formats = formats;
  options.sinks = sinks;
  return options;
}

inline std::vector<int32_t> random_tokens(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(256));
  return ids;
}

}  // namespace kvant::toy
