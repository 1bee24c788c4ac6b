// Speed of the page kernels, one thread: bytes of codes per second and their share of the read
// bandwidth that the same run measured first. Every case is compared with the scalar kernel, bit
// for bit, before it is timed.
//
//   kvant_kernels_bench --benchmark_filter='key/int8.*/avx2/d128/q4'
//
// A case walks over pages that together exceed the last-level cache (name ends in q4), or over one
// page that stays in the first-level cache (ends in q4/hot). Names are
// <side>/<format>/<kernels>/d<dim>/q<queries per KV head>.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/float_types.h"
#include "base/rng.h"
#include "formats/fp4_types.h"
#include "formats/kernels/tables.h"

namespace kvant {
namespace {

constexpr size_t kPoolBytes = size_t{192} << 20;
constexpr int kTokens = 64;
constexpr uint64_t kSeed = 1;

enum class Kind { kInt, kFloat };

struct Desc {
  bool key;
  const char* format;
  Kind kind;
  int bits = 8;
  ScaleLayout layout = ScaleLayout::kToken;
  int group = 0;  // channels that share a scale; 0: all
  bool zero_point = false;
  FloatType type = FloatType::kF32;
  bool blocks = false;  // block scales of one byte, and of integers a table of codes
};

constexpr Desc kDescs[] = {
    {true, "int8_token", Kind::kInt, 8},
    {true, "int8_channel", Kind::kInt, 8, ScaleLayout::kChannel},
    {true, "int8_g32", Kind::kInt, 8, ScaleLayout::kToken, 32},
    {true, "int4_token_z", Kind::kInt, 4, ScaleLayout::kToken, 0, true},
    {true, "int4_channel_z", Kind::kInt, 4, ScaleLayout::kChannel, 0, true},
    {true, "int3_channel_z", Kind::kInt, 3, ScaleLayout::kChannel, 0, true},
    {true, "int2_channel_z", Kind::kInt, 2, ScaleLayout::kChannel, 0, true},
    {true, "f32", Kind::kFloat},
    {true, "bf16", Kind::kFloat, 16, ScaleLayout::kPage, 0, false, FloatType::kBf16},
    {true, "f16", Kind::kFloat, 16, ScaleLayout::kPage, 0, false, FloatType::kF16},
    {true, "fp8_e4m3", Kind::kFloat, 8, ScaleLayout::kPage, 0, false, FloatType::kE4m3},
    {true, "nvfp4", Kind::kInt, 4, ScaleLayout::kToken, 16, false, FloatType::kF32, true},
    {true, "mxfp8_e4m3", Kind::kFloat, 8, ScaleLayout::kToken, 32, false, FloatType::kE4m3, true},
    {false, "int8_token", Kind::kInt, 8},
    {false, "int8_g32", Kind::kInt, 8, ScaleLayout::kToken, 32},
    {false, "int4_token_z", Kind::kInt, 4, ScaleLayout::kToken, 0, true},
    {false, "int4_g32_z", Kind::kInt, 4, ScaleLayout::kToken, 32, true},
    {false, "int3_token_z", Kind::kInt, 3, ScaleLayout::kToken, 0, true},
    {false, "int2_token_z", Kind::kInt, 2, ScaleLayout::kToken, 0, true},
    {false, "f32", Kind::kFloat},
    {false, "bf16", Kind::kFloat, 16, ScaleLayout::kPage, 0, false, FloatType::kBf16},
    {false, "f16", Kind::kFloat, 16, ScaleLayout::kPage, 0, false, FloatType::kF16},
    {false, "fp8_e4m3", Kind::kFloat, 8, ScaleLayout::kPage, 0, false, FloatType::kE4m3},
    {false, "nvfp4", Kind::kInt, 4, ScaleLayout::kToken, 16, false, FloatType::kF32, true},
    {false, "mxfp8_e4m3", Kind::kFloat, 8, ScaleLayout::kToken, 32, false, FloatType::kE4m3, true},
};

// Random bytes that are harmless as codes and, with the upper exponent bit cleared, as floats of
// every type.
const AlignedArray<uint8_t>& pool() {
  static const AlignedArray<uint8_t> bytes = [] {
    AlignedArray<uint8_t> out(kPoolBytes);
    Rng random(kSeed);
    for (size_t i = 0; i < kPoolBytes; i += 8) {
      const uint64_t word = random.next() & 0xbfbfbfbfbfbfbfbfull;
      std::memcpy(out.data() + i, &word, sizeof(word));
    }
    return out;
  }();
  return bytes;
}

// CPU time of this thread: what google-benchmark's rates are over, and steadier where other
// programs run too.
double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Bytes per second of reading the pool: the best of five passes.
double read_bandwidth() {
  static const double best = [] {
    const uint8_t* bytes = pool().data();
    double most = 0;
    for (int pass = 0; pass < 5; ++pass) {
      const double start = cpu_seconds();
      uint64_t sums[16] = {};
      for (size_t i = 0; i < kPoolBytes; i += 128) {
        uint64_t words[16];
        std::memcpy(words, bytes + i, sizeof(words));
        for (int j = 0; j < 16; ++j) sums[j] += words[j];
      }
      benchmark::DoNotOptimize(sums);
      most = std::max(most, static_cast<double>(kPoolBytes) / (cpu_seconds() - start));
    }
    return most;
  }();
  return best;
}

// One case: a table, a format, a head size and a number of queries, with everything a call needs.
class Case {
 public:
  Case(const PageKernels& table, const Desc& desc, int dim, int queries)
      : table_(table), desc_(desc), dim_(dim), num_queries_(queries) {
    Rng random(kSeed);
    scale_.assign(static_cast<size_t>(kTokens * dim), f32_to_f16(0.01f));
    block_scale_.assign(scale_.size(), 0x38);  // 1 as E4M3
    const size_t q = static_cast<size_t>(queries);
    const size_t d = static_cast<size_t>(dim);
    queries_.resize(q * d);
    for (float& x : queries_) x = random.normal();
    p_.resize(q * kTokens);
    for (float& x : p_) x = static_cast<float>(random.uniform());
    out_.resize(q * std::max(d, size_t{kTokens}));
    prepared_ = AlignedArray<std::byte>(table.int_query_bytes(queries, shape()));
    prepare();
  }

  size_t page_bytes() const {
    if (desc_.kind == Kind::kFloat)
      return static_cast<size_t>(kTokens * dim_) * float_bytes(desc_.type);
    return desc_.key ? key_code_bytes(desc_.bits, dim_) : value_code_bytes(desc_.bits, dim_);
  }

  IntShape shape() const { return {desc_.bits, dim_, num_groups(), desc_.layout}; }

  void prepare() {
    if (desc_.kind != Kind::kInt || !desc_.key) return;
    table_.int_prepare_query(queries_.data(), num_queries_, shape(), prepared_.data());
  }

  void run(const uint8_t* bytes) {
    const auto d = static_cast<size_t>(dim_);
    if (desc_.kind == Kind::kInt) {
      const IntPage page = {.codes = bytes,
                            .scale = scale_.data(),
                            .zero = desc_.zero_point ? scale_.data() : nullptr,
                            .factor = nullptr,
                            .bits = desc_.bits,
                            .offset = desc_.blocks       ? kE2m1Offset
                                      : desc_.zero_point ? 0
                                                         : 1 << (desc_.bits - 1),
                            .dim = dim_,
                            .num_groups = num_groups(),
                            .layout = desc_.layout,
                            .across = nullptr,
                            .block_scale = desc_.blocks ? block_scale_.data() : nullptr,
                            .block_type = BlockScale::kE4m3,
                            .unit = 0.5f,
                            .levels = desc_.blocks ? kE2m1Levels.data() : nullptr};
      if (desc_.key) {
        table_.int_key_scores(page, prepared_.data(), num_queries_, out_.data(), kTokens);
      } else {
        table_.int_value_accumulate(page, p_.data(), kTokens, num_queries_, out_.data(), d);
      }
      return;
    }
    const FloatPage page = {.data = reinterpret_cast<const std::byte*>(bytes),
                            .type = desc_.type,
                            .dim = dim_,
                            .num_tokens = kTokens,
                            .scale = nullptr,
                            .layout = ScaleLayout::kPage,
                            .block_scale = desc_.blocks ? block_scale_.data() : nullptr};
    if (desc_.key) {
      table_.float_key_scores(page, queries_.data(), num_queries_, out_.data(), kTokens);
    } else {
      table_.float_value_accumulate(page, p_.data(), kTokens, num_queries_, out_.data(), d);
    }
  }

  std::vector<float>& out() { return out_; }

 private:
  int num_groups() const { return desc_.group == 0 ? 1 : dim_ / desc_.group; }

  const PageKernels& table_;
  const Desc& desc_;
  int dim_;
  int num_queries_;
  std::vector<uint16_t> scale_;
  std::vector<uint8_t> block_scale_;
  std::vector<float> queries_;
  std::vector<float> p_;
  std::vector<float> out_;
  AlignedArray<std::byte> prepared_;
};

bool agrees_with_scalar(const PageKernels& table, const Desc& desc, int dim, int queries) {
  Case fast(table, desc, dim, queries);
  Case slow(page_kernels(Isa::kScalar), desc, dim, queries);
  fast.run(pool().data());
  slow.run(pool().data());
  return std::memcmp(fast.out().data(), slow.out().data(), fast.out().size() * sizeof(float)) == 0;
}

void time_case(benchmark::State& state, const PageKernels& table, const Desc& desc, int dim,
               int queries, bool hot) {
  if (!agrees_with_scalar(table, desc, dim, queries)) {
    state.SkipWithError("differs from the scalar kernel");
    return;
  }
  Case c(table, desc, dim, queries);
  const size_t bytes = c.page_bytes();
  const size_t num_pages = hot ? 1 : kPoolBytes / bytes;
  size_t page = 0;
  for (auto _ : state) {
    // 64 pages at a time, as a sequence of 4,096 tokens; sums start anew, so that they stay finite.
    std::fill(c.out().begin(), c.out().end(), 0.0f);
    for (int i = 0; i < 64; ++i, page = page + 1 == num_pages ? 0 : page + 1)
      c.run(pool().data() + page * bytes);
    benchmark::DoNotOptimize(c.out().data());
  }
  const double total = 64.0 * static_cast<double>(state.iterations()) * static_cast<double>(bytes);
  state.SetBytesProcessed(static_cast<int64_t>(total));
  state.counters["tokens/s"] =
      benchmark::Counter(64.0 * kTokens, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_bandwidth"] =
      benchmark::Counter(total / read_bandwidth(), benchmark::Counter::kIsRate);
}

void register_all() {
  for (const PageKernels* table : runnable_page_kernels()) {
    for (const Desc& desc : kDescs) {
      for (int dim : {64, 128, 256}) {
        for (int queries : {1, 4, 64}) {
          for (bool hot : {false, true}) {
            const std::string name = std::string(desc.key ? "key/" : "value/") + desc.format + "/" +
                                     table->name + "/d" + std::to_string(dim) + "/q" +
                                     std::to_string(queries) + (hot ? "/hot" : "");
            benchmark::RegisterBenchmark(name.c_str(), [=, &desc](benchmark::State& state) {
              time_case(state, *table, desc, dim, queries, hot);
            });
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvant

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  std::printf("%s\nread bandwidth, one thread: %.2f GB/s\n", kvant::cpu_description().c_str(),
              kvant::read_bandwidth() * 1e-9);
  kvant::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
