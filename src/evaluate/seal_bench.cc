#include "evaluate/seal_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "base/bytes.h"
#include "base/float_types.h"
#include "base/rng.h"
#include "evaluate/stand_in.h"
#include "formats/family.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPages = 32;  // that an encoder is timed on: 1 MiB of 128 channels in float32
constexpr int kFillTokens = 512;
// A round trip may be worse than the format's band (family.h) by what stand-ins for scales cost; it
// has to be better than this where a transform stands in, which no band is for.
constexpr double kSlackDb = 1.5, kLeastDb = 3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Standard normal values, rounded to BF16 as a cache stores them.
std::vector<float> normal_rows(size_t count) {
  Rng rng(21);
  std::vector<float> rows(count);
  for (float& x : rows) x = bf16_to_f32(f32_to_bf16(rng.normal()));
  return rows;
}

struct EncoderTiming {
  double rate = 0, spread = 0;
};

// One side's encoder over a few pages.
class Encoder {
 public:
  static Result<Encoder> bind(const FormatInfo& format, Side side, int dim) {
    const std::vector<float> tensor = stand_in_tensor(format, dim);
    const float scale = stand_in_scale(format);
    const CodecArtifacts artifacts{.tensor_scale = scale > 0 ? scale : 1, .tensor = tensor};
    CodecBinding binding;
    binding.side = side;
    binding.dim = dim;
    binding.artifacts = &artifacts;
    Encoder encoder(format, side, dim);
    KVANT_ASSIGN(encoder.codec_, bind_codec(format, binding));
    encoder.pages_ = AlignedArray<std::byte>(kPages * encoder.codec_->page_bytes());
    return encoder;
  }

  // Encodes all pages; seconds.
  double run() {
    const Clock::time_point start = Clock::now();
    for (size_t i = 0; i < kPages; ++i) encode(i);
    return seconds_since(start);
  }

  // The distance of what comes back from what went in.
  Status check() {
    run();
    double noise = 0, signal = 0;
    std::vector<float> back(page_floats());
    for (size_t i = 0; i < kPages; ++i) {
      codec_->decode(pages_.data() + i * codec_->page_bytes(), back.data());
      for (size_t j = 0; j < back.size(); ++j) {
        const double x = rows_[i * page_floats() + j];
        signal += x * x;
        noise += (back[j] - x) * (back[j] - x);
      }
    }
    const double db = 10 * std::log10(signal / noise);
    const double least = format_.needs.artifacts
                             ? kLeastDb
                             : definition_of(format_).band(side_, dim_).low_db - kSlackDb;
    if (db >= least) return {};
    return internal_error(
        fmt::format("{}: {} comes back with {:.1f} dB of signal to noise, wanted at least {:.1f}",
                    format_.name, side_name(side_), db, least));
  }

  EncoderTiming time(int repeats) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) times.push_back(run());
    std::sort(times.begin(), times.end());
    const double middle = times[times.size() / 2];
    const double bytes = static_cast<double>(kPages * page_floats()) * 2;
    return {.rate = bytes / middle,
            .spread = (times[times.size() * 3 / 4] - times[times.size() / 4]) / middle};
  }

 private:
  Encoder(const FormatInfo& format, Side side, int dim)
      : format_(format), side_(side), dim_(dim), rows_(normal_rows(kPages * page_floats())) {}

  size_t page_floats() const { return static_cast<size_t>(kPageTokens * dim_); }

  // Formats that need more of a page get the rows themselves for it.
  void encode(size_t page) {
    const float* rows = rows_.data() + page * page_floats();
    const PageInput input{.rows = rows,
                          .first_position = static_cast<int64_t>(page) * kPageTokens,
                          .pre_rope_rows = rows,
                          .previous_layer = rows,
                          .key_rows = rows};
    codec_->encode(input, pages_.data() + page * codec_->page_bytes());
  }

  const FormatInfo& format_;
  Side side_;
  int dim_;
  std::vector<float> rows_;
  std::unique_ptr<Codec> codec_;
  AlignedArray<std::byte> pages_;
};

Status time_encoder(const std::string& name, Side side, int dim, int repeats,
                    std::optional<double>& rate, double& spread) {
  KVANT_ASSIGN(const FormatInfo* format, find_format(name));
  if (format->exact) return {};
  KVANT_ASSIGN(Encoder encoder, Encoder::bind(*format, side, dim));
  KVANT_TRY(encoder.check());
  const EncoderTiming timing = encoder.time(repeats);
  rate = timing.rate;
  spread = std::max(spread, timing.spread);
  return {};
}

// A sequence that is filled in steps of a prefill and then goes on token by token through a page's
// worth of steps, of which one seals.
class Decoding {
 public:
  Decoding(const AttentionShape& shape, ThreadPool& threads)
      : s_(shape), row_(static_cast<size_t>(s_.kv_heads * s_.dim)), threads_(threads) {
    const auto tokens = static_cast<size_t>(s_.tokens.front() + kPageTokens);
    rows_ = normal_rows(tokens * row_);
    q_ = normal_rows(static_cast<size_t>(s_.heads * s_.dim));
    out_.resize(q_.size());
  }

  Status measure(const FormatPair& pair, SealTiming& out) {
    KVANT_TRY(create(pair));
    Clock::time_point start = Clock::now();
    for (int first = 0; first < s_.tokens.front(); first += kFillTokens)
      KVANT_TRY(step(first, std::min(kFillTokens, s_.tokens.front() - first), false));
    const double bytes = static_cast<double>(s_.tokens.front()) * static_cast<double>(row_) * 4;
    out.append_rate = bytes / seconds_since(start);
    attending_ = 0;
    start = Clock::now();
    for (int i = 0; i < kPageTokens; ++i) KVANT_TRY(step(s_.tokens.front() + i, 1, true));
    const double all = seconds_since(start);
    out.append_ms = 1e3 * (all - attending_) / kPageTokens;
    out.decode_share = (all - attending_) / all;
    return {};
  }

 private:
  Status create(const FormatPair& pair) {
    CacheOptions options;
    CacheLayer layer;
    layer.num_kv_heads = s_.kv_heads;
    layer.key_dim = layer.value_dim = s_.dim;
    layer.formats = pair;
    options.layers = {stand_in_layer(layer)};
    options.sinks = s_.sinks;
    options.exact_window = s_.exact_window;
    options.rotation_seed = s_.rotation_seed;
    KVANT_ASSIGN(cache_, KvCache::create(options, threads_));
    KVANT_ASSIGN(sequence_, cache_->create_sequence());
    return {};
  }

  Status step(int first, int count, bool attend) {
    const StepItem item{sequence_, count};
    const float* rows = rows_.data() + static_cast<size_t>(first) * row_;
    KVANT_TRY(cache_->begin_step({&item, 1}));
    KVANT_TRY(cache_->append(0, rows, rows));
    if (attend) {
      const Clock::time_point start = Clock::now();
      KVANT_TRY(
          cache_->attend(0, q_.data(), {.num_query_heads = s_.heads, .scale = 0.1f}, out_.data()));
      attending_ += seconds_since(start);
    }
    return cache_->end_step();
  }

  const AttentionShape& s_;
  const size_t row_;  // floats of a token's K
  ThreadPool& threads_;
  std::vector<float> rows_, q_, out_;
  std::unique_ptr<KvCache> cache_;
  SequenceId sequence_ = 0;
  double attending_ = 0;
};

}  // namespace

bool is_scalar(const FormatInfo& format) {
  const bool searched = format.name != format.layout;
  return !format.exact && !searched && !format.needs.artifacts && format.family != "kvarn";
}

Result<SealTiming> bench_seal(const FormatPair& pair, const AttentionShape& shape, int repeats,
                              ThreadPool& threads) {
  SealTiming out{.pair = pair, .key_rate = {}, .value_rate = {}};
  KVANT_TRY(time_encoder(pair.key, Side::kKey, shape.dim, repeats, out.key_rate, out.spread));
  KVANT_TRY(time_encoder(pair.value, Side::kValue, shape.dim, repeats, out.value_rate, out.spread));
  KVANT_TRY(Decoding(shape, threads).measure(pair, out).with_context(pair.name()));
  return out;
}

}  // namespace kvant
