// An engine with a prefix cache, of as many bytes as a test likes.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "engine/engine_harness.h"
#include "formats/tested_formats.h"

namespace kvant {

class SharingTest : public EngineTest {
 protected:
  // An engine with a prefix cache, of so many bytes at most.
  void open_shared(const FormatPair& formats, EngineOptions options = {}, toy::ToyOptions toy = {},
                   uint64_t max_bytes = 0) {
    engine_.reset();
    cache_.reset();
    model_ = std::make_unique<toy::ToyModel>(toy);
    CacheOptions cache = toy::cache_options(*model_, formats);
    cache.prefix_cache = true;
    cache.max_bytes = max_bytes;
    open_cache(cache, options);
  }
  uint64_t bytes_of(const FormatPair& formats, const toy::ToyOptions& toy,
                    std::vector<int64_t> lengths) {
    const toy::ToyModel model(toy);
    return plan_cache(toy::cache_options(model, formats), lengths)->total_bytes();
  }
  struct Told {
    Finished answer;
    int64_t cached = 0;
  };
  Told ask(GenerationRequest request) {
    const RequestId id = submit(std::move(request));
    Told told;
    told.answer = drain().at(id);
    told.cached = engine_->take_stats(id)->cached_tokens;
    return told;
  }
  // Tokens of each sample of the only request.
  std::vector<std::vector<int32_t>> drain_samples(RequestId id, size_t num_samples) {
    std::vector<std::vector<int32_t>> tokens(num_samples);
    while (!engine_->idle()) {
      for (const GenerationEvent& e : engine_->step()) {
        EXPECT_EQ(e.request, id);
        if (e.token) tokens[static_cast<size_t>(e.sample)].push_back(*e.token);
      }
    }
    return tokens;
  }
  void check() {
    const Status status = cache_->check_invariants();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  int64_t num_preemptions_ = 0;
  // Pages that somebody uses.
  uint64_t used_bytes() const { return cache_->usage().live_bytes - cache_->usage().cached_bytes; }
};

inline const std::vector<FormatPair>& some_formats() {
  static const std::vector<FormatPair> formats =
      kSlowBuild
          ? std::vector<FormatPair>{{"int8_channel_z", "int4_token_z_rot"}}
          : std::vector<FormatPair>{
                {"bf16", "bf16"}, {"int8_channel_z", "int4_token_z_rot"}, {"fp8_e4m3", "bf16"}};
  return formats;
}

// All formats that need nothing given; in slow builds a third of them, codecs have tests of their
// own.
template <typename Fn>
void for_each_format(Fn fn) {
  size_t count = 0;
  for (const FormatInfo& format : all_formats()) {
    if (!is_tested(format) || !format.for_keys || !format.for_values) continue;
    if (format.scale_source == ScaleSource::kGiven || format.needs.artifacts) continue;
    if (!sealed_bits(format, Side::kKey, toy::kDim).ok()) continue;
    if (kSlowBuild && count++ % 3 != 0) continue;
    fn(FormatPair{format.name, format.name});
  }
}

}  // namespace kvant
