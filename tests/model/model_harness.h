// Runs decoders in tests: prompts through a cache of a given format, greedy continuations, and
// comparisons with logits that Transformers computed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "formats/tested_formats.h"
#include "kvant/cache.h"
#include "model/open_decoder.h"

namespace kvant {

class TestModel {
 public:
  TestModel(const std::filesystem::path& path, const ModelOptions& options, int num_threads = 2)
      : threads_(num_threads) {
    auto opened = open_decoder(path, options, threads_);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (opened.ok()) decoder_ = std::move(opened->decoder);
  }

  bool ok() const { return decoder_ != nullptr; }
  Decoder& decoder() { return *decoder_; }
  ThreadPool& threads() { return threads_; }
  size_t vocabulary() const { return static_cast<size_t>(decoder_->info().vocab_size); }
  size_t hidden_size() const { return static_cast<size_t>(decoder_->info().hidden_size); }

  std::unique_ptr<KvCache> cache(const std::string& format) {
    CacheOptions options;
    options.layers = decoder_->info().cache_layers;
    const FormatInfo& info = *find_format(format).value();
    for (CacheLayer& layer : options.layers) {
      layer.formats = {info.for_keys ? format : "bf16", info.for_values ? format : "bf16"};
      layer.key_scale = layer.value_scale = 0.05f;  // of formats that take a given one
      layer.key_artifacts = any_artifacts(info, layer.num_kv_heads, layer.key_dim);
    }
    auto made = KvCache::create(options, threads_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }

  // Hidden states of `tokens` appended to a sequence in chunks of `chunk` tokens (0: all at once).
  std::vector<float> feed(KvCache& cache, SequenceId sequence, const std::vector<int32_t>& tokens,
                          size_t chunk = 0) {
    std::vector<float> hidden(tokens.size() * hidden_size());
    const size_t step = chunk == 0 ? tokens.size() : chunk;
    for (size_t i = 0; i < tokens.size(); i += step) {
      const ForwardItem item{sequence,
                             std::span(tokens).subspan(i, std::min(step, tokens.size() - i))};
      const Status status = decoder_->forward(cache, {&item, 1}, hidden.data() + i * hidden_size());
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return hidden;
  }

  std::vector<float> logits(const float* hidden, size_t rows) {
    std::vector<float> out(rows * vocabulary());
    const Status status =
        decoder_->logits(hidden, static_cast<int>(rows), Model::Dense::kRow, out.data());
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

  std::vector<int32_t> greedy(const std::vector<int32_t>& prompt, size_t count,
                              const std::string& format) {
    auto kv = cache(format);
    const SequenceId sequence = kv->create_sequence().value();
    return greedy_after(*kv, {{sequence, feed(*kv, sequence, prompt)}}, count)[0];
  }

  // The tokens after those of some sequences, whose hidden states are given; all go on at once.
  struct Prefix {
    SequenceId sequence;
    std::vector<float> hidden;
  };
  std::vector<std::vector<int32_t>> greedy_after(KvCache& kv, const std::vector<Prefix>& prefixes,
                                                 size_t count) {
    std::vector<std::vector<int32_t>> out(prefixes.size());
    std::vector<float> last;
    for (const Prefix& prefix : prefixes) {
      const auto width = static_cast<ptrdiff_t>(hidden_size());
      last.insert(last.end(), prefix.hidden.end() - width, prefix.hidden.end());
    }
    for (;;) {
      const std::vector<float> rows = logits(last.data(), prefixes.size());
      std::vector<ForwardItem> items;
      for (size_t i = 0; i < prefixes.size(); ++i) {
        const auto row = rows.begin() + static_cast<ptrdiff_t>(i * vocabulary());
        const auto best = std::max_element(row, row + static_cast<ptrdiff_t>(vocabulary()));
        out[i].push_back(static_cast<int32_t>(best - row));
        items.push_back({prefixes[i].sequence, {&out[i].back(), 1}});
      }
      if (out[0].size() == count) return out;
      const Status status = decoder_->forward(kv, items, last.data());
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

 private:
  ThreadPool threads_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace kvant
