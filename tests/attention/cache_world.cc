#include "cache_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/reference.h"
#include "base/rng.h"

namespace kvant::test {
namespace {

// Values of about unit size that depend on their coordinates only.
std::vector<float> values(uint64_t stream, int layer, int kind, int64_t begin, int64_t end,
                          int width) {
  std::vector<float> out;
  out.reserve(static_cast<size_t>((end - begin) * width));
  const uint64_t rows_seed = mix64(stream * 4096 + static_cast<uint64_t>(layer * 4 + kind));
  for (int64_t t = begin; t < end; ++t) {
    const uint64_t row_seed = mix64(rows_seed + static_cast<uint64_t>(t));
    for (int c = 0; c < width; ++c) {
      const uint64_t h = mix64(row_seed + static_cast<uint64_t>(c));
      const uint64_t sum = (h & 0xffff) + ((h >> 16) & 0xffff) + ((h >> 32) & 0xffff) + (h >> 48);
      out.push_back((static_cast<float>(sum) * 0x1p-16f - 2.0f) * 1.7f);
    }
  }
  return out;
}

}  // namespace

CacheWorld::CacheWorld(WorldOptions options)
    : options_(std::move(options)), threads_(options_.threads) {
  Result<std::unique_ptr<KvCacheImpl>> cache =
      create_cache(options_.cache, threads_,
                   {.formats = world_formats(), .isa = options_.isa, .fill = options_.fill});
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  if (cache.ok()) cache_ = std::move(*cache);
}

LayerRows CacheWorld::rows(uint64_t stream, int layer, int64_t begin, int64_t end) const {
  const CacheLayer& l = options_.cache.layers[static_cast<size_t>(layer)];
  return {.k = values(stream, layer, 0, begin, end, l.num_kv_heads * l.key_dim),
          .v = values(stream, layer, 1, begin, end, l.num_kv_heads * l.value_dim),
          .q = values(stream, layer, 2, begin, end, query_heads(layer) * l.key_dim)};
}

std::vector<Outputs> CacheWorld::step(const std::vector<Feed>& feeds) {
  std::vector<Outputs> outputs;
  const Status status = try_step(feeds, &outputs);
  EXPECT_TRUE(status.ok()) << status.message();
  return outputs;
}

Status CacheWorld::try_step(const std::vector<Feed>& feeds, std::vector<Outputs>* outputs) {
  std::vector<StepItem> batch;
  std::vector<int64_t> begins;
  for (const Feed& feed : feeds) {
    begins.push_back(length(feed.sequence));
    batch.push_back({.sequence = feed.sequence, .num_tokens = feed.num_tokens});
  }
  KVANT_TRY(cache_->begin_step(batch));
  std::vector<Outputs> all(feeds.size(), Outputs(static_cast<size_t>(num_layers())));
  for (int layer = 0; layer < num_layers(); ++layer) {
    const CacheLayer& l = options_.cache.layers[static_cast<size_t>(layer)];
    if (l.num_kv_heads == 0) continue;
    LayerRows batch_rows;
    size_t total = 0;
    for (size_t i = 0; i < feeds.size(); ++i) {
      const LayerRows one =
          rows(feeds[i].stream, layer, begins[i], begins[i] + feeds[i].num_tokens);
      batch_rows.k.insert(batch_rows.k.end(), one.k.begin(), one.k.end());
      batch_rows.v.insert(batch_rows.v.end(), one.v.begin(), one.v.end());
      batch_rows.q.insert(batch_rows.q.end(), one.q.begin(), one.q.end());
      total += static_cast<size_t>(feeds[i].num_tokens);
    }
    if (l.shares < 0)
      KVANT_TRY(
          cache_->append(layer, batch_rows.k.data(), batch_rows.v.data(), batch_rows.k.data()));
    if (!attends) continue;
    const auto width = static_cast<size_t>(query_heads(layer) * l.value_dim);
    std::vector<float> out(total * width, 12345.0f);
    const AttentionParams params{.num_query_heads = query_heads(layer),
                                 .scale = 1.0f / std::sqrt(static_cast<float>(l.key_dim)),
                                 .soft_cap = options_.soft_cap};
    KVANT_TRY(cache_->attend(layer, batch_rows.q.data(), params, out.data()));
    size_t at = 0;
    for (size_t i = 0; i < feeds.size(); ++i) {
      const size_t count = static_cast<size_t>(feeds[i].num_tokens) * width;
      all[i][static_cast<size_t>(layer)].assign(out.begin() + static_cast<ptrdiff_t>(at),
                                                out.begin() + static_cast<ptrdiff_t>(at + count));
      at += count;
    }
    if (after_attend) after_attend(layer, feeds, begins, all);
  }
  KVANT_TRY(cache_->end_step());
  if (outputs != nullptr) *outputs = std::move(all);
  return Status();
}

Outputs CacheWorld::feed(SequenceId id, uint64_t stream, int64_t end,
                         const std::vector<int>& chunks) {
  Outputs all(static_cast<size_t>(num_layers()));
  for (size_t i = 0; length(id) < end; ++i) {
    const auto chunk =
        static_cast<int>(std::min<int64_t>(chunks[i % chunks.size()], end - length(id)));
    const std::vector<Outputs> out = step({{id, stream, chunk}});
    if (out.empty()) return all;
    append_outputs(all, out[0]);
  }
  return all;
}

bool same_bits(const Outputs& a, const Outputs& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return false;
    if (!a[i].empty() && std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

void append_outputs(Outputs& all, const Outputs& more) {
  for (size_t layer = 0; layer < all.size(); ++layer) {
    all[layer].insert(all[layer].end(), more[layer].begin(), more[layer].end());
  }
}

CacheLayer make_layer(const std::string& key, const std::string& value, int window, int heads,
                      int key_dim, int value_dim) {
  CacheLayer layer;
  layer.num_kv_heads = heads;
  layer.key_dim = key_dim;
  layer.value_dim = value_dim;
  layer.window = window;
  layer.formats = {key, value};
  return layer;
}

const FormatPair kFewPairs[5] = {{"int8_token", "int8_token"},
                                 {"int8_channel_z", "int4_token_z_rot"},
                                 {"bf16", "int8_token"},
                                 {"fp8_e4m3", "fp8_e4m3"},
                                 {"f32", "f32"}};

CacheOptions layers_of(const FormatPair& formats, const std::vector<int>& windows) {
  CacheOptions options;
  for (const int window : windows)
    options.layers.push_back(make_layer(formats.key, formats.value, window, 1, 32, 32));
  return options;
}

Outputs solo(const CacheOptions& options, uint64_t stream, int64_t tokens) {
  CacheWorld world({.cache = options});
  return world.feed(world.new_sequence(), stream, tokens, {static_cast<int>(tokens)});
}

Outputs slice(const Outputs& all, int64_t begin, int64_t end, int64_t tokens) {
  Outputs part;
  for (const std::vector<float>& layer : all) {
    const size_t width = layer.size() / static_cast<size_t>(tokens);
    part.emplace_back(layer.begin() + begin * static_cast<ptrdiff_t>(width),
                      layer.begin() + end * static_cast<ptrdiff_t>(width));
  }
  return part;
}

void expect_invariants(CacheWorld& world) {
  const Status status = world.cache().check_invariants();
  EXPECT_TRUE(status.ok()) << status.message();
}

double kernel_bound(const FormatPair& formats) {
  const double bits = std::min((*find_format(formats.key))->nominal_bits,
                               (*find_format(formats.value))->nominal_bits);
  return bits <= 2 ? 8e-2 : bits <= 4 ? 2e-2 : 1e-3;
}

double reference_error(CacheWorld& world, const Feed& feed, int64_t begin, int layer,
                       const std::vector<float>& out) {
  const CacheLayer& l = world.options().cache.layers[static_cast<size_t>(layer)];
  const int heads = world.query_heads(layer);
  const int64_t end = begin + feed.num_tokens;
  const LayerRows rows = world.rows(feed.stream, layer, begin, end);
  double error = 0, largest = 0;
  std::vector<double> expected(static_cast<size_t>(l.value_dim));
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = l.window == 0 ? 0 : std::max<int64_t>(0, t - l.window + 1);
    const int64_t count = t - first + 1;
    std::vector<float> k(static_cast<size_t>(count * l.num_kv_heads * l.key_dim));
    std::vector<float> v(static_cast<size_t>(count * l.num_kv_heads * l.value_dim));
    const Status status =
        world.cache().read(feed.sequence, layer, first, count, t, k.data(), v.data());
    EXPECT_TRUE(status.ok()) << status.message();
    for (const float x : v) largest = std::max(largest, std::fabs(double{x}));
    for (int h = 0; h < heads; ++h) {
      const int kv_head = h / world.options().group;
      const size_t row = static_cast<size_t>((t - begin) * heads + h);
      reference_attention({.query = rows.q.data() + row * static_cast<size_t>(l.key_dim),
                           .keys = k.data() + kv_head * l.key_dim,
                           .values = v.data() + kv_head * l.value_dim,
                           .num_tokens = count,
                           .key_stride = int64_t{l.num_kv_heads} * l.key_dim,
                           .value_stride = int64_t{l.num_kv_heads} * l.value_dim,
                           .key_dim = l.key_dim,
                           .value_dim = l.value_dim,
                           .scale = 1.0 / std::sqrt(double(l.key_dim)),
                           .soft_cap = double{world.options().soft_cap}},
                          expected.data());
      for (size_t c = 0; c < expected.size(); ++c) {
        const double got = double{out[row * expected.size() + c]};
        error = std::max(error, std::isfinite(got) ? std::fabs(got - expected[c]) : 1e9);
      }
    }
  }
  return error / largest;
}

}  // namespace kvant::test
