// CacheWorld: a cache, and sequences whose rows are a fixed function of (stream, layer, position),
// so that a test can feed the same tokens in any order and amount and compare what comes out.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/kv_cache_impl.h"
#include "base/threads.h"
#include "test_formats.h"

namespace kvant::test {

// Rows of one layer.
struct LayerRows {
  std::vector<float> k, v, q;
};

// The formats that worlds know: those of tests, and the registered ones where the test program
// links them.
FormatSource world_formats();

struct WorldOptions {
  CacheOptions cache;
  int group = 2;  // query heads per KV head
  float soft_cap = 0;
  int threads = 1;
  Isa isa = active_isa();
  int fill = -1;
};

// Outputs of some tokens: [layer][token][query heads × value_dim].
using Outputs = std::vector<std::vector<float>>;

struct Feed {
  SequenceId sequence;
  uint64_t stream;  // which tokens
  int num_tokens;
};

class CacheWorld {
 public:
  explicit CacheWorld(WorldOptions options);

  KvCache& cache() { return *cache_; }
  const WorldOptions& options() const { return options_; }
  int num_layers() const { return static_cast<int>(options_.cache.layers.size()); }
  int query_heads(int layer) const {
    return options_.cache.layers[static_cast<size_t>(layer)].num_kv_heads * options_.group;
  }

  SequenceId new_sequence() { return cache_->create_sequence().value(); }
  int64_t length(SequenceId id) { return cache_->length(id).value(); }

  // One step. Outputs per feed. Fails the test if the cache does.
  std::vector<Outputs> step(const std::vector<Feed>& feeds);
  // As step(), but answers begin_step's status instead; `outputs` may be null.
  Status try_step(const std::vector<Feed>& feeds, std::vector<Outputs>* outputs);
  // Tokens [length, end) of a stream in chunks: chunks[i % size], cut at `end`. Outputs of all of
  // them.
  Outputs feed(SequenceId id, uint64_t stream, int64_t end, const std::vector<int>& chunks);

  // A stream's rows of positions [begin, end).
  LayerRows rows(uint64_t stream, int layer, int64_t begin, int64_t end) const;

  bool attends = true;  // false: steps append only, and their outputs are empty

  // Called in each step after attend() of a layer, with the lengths before the step and the outputs
  // so far.
  std::function<void(int layer, const std::vector<Feed>& feeds, const std::vector<int64_t>& begins,
                     const std::vector<Outputs>& outputs)>
      after_attend;

 private:
  WorldOptions options_;
  ThreadPool threads_;
  std::unique_ptr<KvCache> cache_;
};

// True for every bit of every number.
bool same_bits(const Outputs& a, const Outputs& b);

// Appends `more` to `all`, layer by layer.
void append_outputs(Outputs& all, const Outputs& more);

// One layer of the given shape and formats.
CacheLayer make_layer(const std::string& key, const std::string& value, int window = 0,
                      int heads = 2, int key_dim = 32, int value_dim = 32);

// Few, and unlike one another: integers per token and per channel, rotated, floats, mixed pairs.
extern const FormatPair kFewPairs[5];

// One narrow layer per window, all of one pair.
CacheOptions layers_of(const FormatPair& formats, const std::vector<int>& windows);

// Outputs of a stream's first tokens, alone in a fresh cache and in one step.
Outputs solo(const CacheOptions& options, uint64_t stream, int64_t tokens);

// Rows [begin, end) of the outputs of `tokens` tokens that start at position 0.
Outputs slice(const Outputs& all, int64_t begin, int64_t end, int64_t tokens);

void expect_invariants(CacheWorld& world);

// How far kernels may be from that: little, and more where codes of up to 4 bits are multiplied
// with coarser integers (docs/numerics.md).
double kernel_bound(const FormatPair& formats);

// What the layer's outputs should be, in double precision, from rows that the cache itself says it
// stands for: the largest error relative to the largest |v| seen. Call it after attend(), in the
// step.
double reference_error(CacheWorld& world, const Feed& feed, int64_t begin, int layer,
                       const std::vector<float>& out);

}  // namespace kvant::test
