// The block path: 64 rows times a slice of 64 weight rows per oneDNN call. An item is one slice of
// one job and up to sixteen blocks: the slice is dequantized into the worker's scratch memory (it
// stays in the second-level cache), then multiplied with each block. Measured on AVX2 (Milan, one
// thread): 80 to 86 GFLOP/s for 64 x K x 64, as much as for any larger shape; in bf16 on AVX-512
// (Genoa) 140 to 190.
#include <ggml.h>

#include <algorithm>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <tuple>

#include "base/bytes.h"
#include "model/dense.h"
#include "model/ggml_cpu.h"
#include "simd/cpu.h"

// Debian's oneDNN is built with OpenMP: each of our threads tells it to use no others.
extern "C" void omp_set_num_threads(int);

namespace kvant {
namespace {

constexpr int64_t kSliceRows = WeightPages::kPageRows;
constexpr size_t kBlocksPerItem = 16;
constexpr size_t kBlock = RowPlan::kBlockRows;

using DataType = dnnl::memory::data_type;

DataType compute_type(const Matrix& w) {
  return w.type != GGML_TYPE_F32 && cpu_has_bf16() ? DataType::bf16 : DataType::f32;
}

// Of the calling thread; once is enough.
void use_one_thread() {
  thread_local const bool alone = (omp_set_num_threads(1), true);
  (void)alone;
}

// Shape of a multiplication: everything that a primitive depends on.
struct Shape {
  DataType type;
  int64_t cols;
  int64_t slice;
  int64_t x_stride;
  int64_t out_stride;
  auto key() const { return std::tuple(type, cols, slice, x_stride, out_stride); }
  bool operator<(const Shape& other) const { return key() < other.key(); }
};

// Rows of floats on their way to bf16, by oneDNN's own code for this CPU.
struct Rounding {
  dnnl::reorder primitive;
  dnnl::memory::desc in, out;
};

Rounding make_rounding(int64_t rows, int64_t cols, int64_t stride, const dnnl::engine& engine) {
  Rounding r;
  r.in = {{rows, cols}, DataType::f32, dnnl::memory::dims{stride, 1}};
  r.out = {{rows, cols}, DataType::bf16, dnnl::memory::dims{cols, 1}};
  r.primitive = dnnl::reorder(dnnl::reorder::primitive_desc(engine, r.in, engine, r.out));
  return r;
}

struct Product {
  dnnl::matmul primitive;
  dnnl::memory::desc x, weights, out, scratchpad;
  Rounding round_weights;  // of a dequantized slice; where bf16 is multiplied
};

// How one job is multiplied.
struct Cut {
  const DenseJob* job;
  DataType type;
  const Product* whole;  // slices of kSliceRows
  const Product* rest;   // the last slice; nullptr if it is whole
};

// A slice of a job's weights times blocks [begin, end).
struct Item {
  const Cut* cut;
  int64_t first;  // row of the weights
  size_t begin, end;
};

void add_items(const Cut& cut, int64_t first, size_t begin, size_t end, size_t most,
               std::vector<Item>& items) {
  for (size_t at = begin; at < end; at += most) {
    items.push_back({&cut, first, at, std::min(at + most, end)});
  }
}

// Items of many blocks, since each dequantizes its slice. The last few, which not every thread
// would get one of, are cut into as many parts as there are threads.
std::vector<Item> cut_into_items(std::span<const Cut> cuts, size_t num_blocks, size_t num_threads) {
  std::vector<Item> items;
  for (const Cut& cut : cuts) {
    for (int64_t first = 0; first < cut.job->linear->weight.rows; first += kSliceRows) {
      add_items(cut, first, 0, num_blocks, kBlocksPerItem, items);
    }
  }
  const auto shared = static_cast<std::ptrdiff_t>(items.size() / num_threads * num_threads);
  const std::vector<Item> last(items.begin() + shared, items.end());
  items.resize(static_cast<size_t>(shared));
  for (const Item& item : last) {
    const size_t most = (item.end - item.begin + num_threads - 1) / num_threads;
    add_items(*item.cut, item.first, item.begin, item.end, most, items);
  }
  return items;
}

}  // namespace

struct BlockDense::Impl {
  // What one thread needs for itself.
  struct Worker {
    dnnl::stream stream;
    AlignedArray<float> floats;      // [kSliceRows][cols], dequantized
    AlignedArray<uint16_t> weights;  // the same in bf16
    AlignedArray<std::byte> scratchpad;
  };

  explicit Impl(ThreadPool& pool) : threads(pool), engine(dnnl::engine::kind::cpu, 0) {
    for (int i = 0; i < threads.num_threads(); ++i)
      workers.push_back({dnnl::stream(engine), {}, {}, {}});
  }

  Result<const Product*> product(const Shape& shape);
  Result<Cut> cut(const DenseJob& job);
  const void* slice(const Cut& cut, const Product& product, int64_t first, int64_t count,
                    Worker& worker) const;
  void round(const Rounding& rounding, const float* in, uint16_t* out, Worker& worker) const;
  void multiply(const Item& item, std::span<const int> blocks, int worker);
  void round_activations(std::span<const int> blocks, int64_t cols);

  ThreadPool& threads;
  dnnl::engine engine;
  std::vector<Worker> workers;
  std::map<Shape, Product> products;
  std::map<std::pair<int64_t, size_t>, Rounding> roundings;  // of a block of activations
  AlignedArray<uint16_t> rounded;  // blocks of activations in bf16, [block][64][cols]
  // Of the call in progress.
  const float* x = nullptr;
  size_t x_stride = 0;
  std::mutex mutex;
  Status failure;  // guarded by mutex
};

Result<const Product*> BlockDense::Impl::product(const Shape& shape) {
  const auto found = products.find(shape);
  if (found != products.end()) return &found->second;
  const auto m = static_cast<int64_t>(kBlock);
  Product p;
  p.x = {{m, shape.cols}, shape.type, dnnl::memory::dims{shape.x_stride, 1}};
  p.weights = {{shape.cols, shape.slice}, shape.type, dnnl::memory::dims{1, shape.cols}};
  p.out = {{m, shape.slice}, DataType::f32, dnnl::memory::dims{shape.out_stride, 1}};
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::primitive_desc description({p.x, p.weights, p.out}, attributes, engine);
  const std::string implementation = description.impl_info_str();
  if (implementation.find("ref") != std::string::npos) {
    return unsupported("oneDNN has only the reference code '" + implementation +
                       "' for a product of " + std::to_string(shape.cols) + " x " +
                       std::to_string(shape.slice) + "; --invariant does without oneDNN");
  }
  p.primitive = dnnl::matmul(description);
  if (shape.type == DataType::bf16) {
    p.round_weights = make_rounding(shape.slice, shape.cols, shape.cols, engine);
  }
  p.scratchpad = description.scratchpad_desc();
  return &products.emplace(shape, std::move(p)).first->second;
}

Result<Cut> BlockDense::Impl::cut(const DenseJob& job) {
  const Matrix& w = job.linear->weight;
  const DataType type = compute_type(w);
  Cut out{&job, type, nullptr, nullptr};
  Shape shape{type, w.cols, kSliceRows,
              type == DataType::bf16 ? w.cols : static_cast<int64_t>(x_stride),
              static_cast<int64_t>(job.out_stride)};
  if (w.rows >= kSliceRows) {
    KVANT_ASSIGN(out.whole, product(shape));
  }
  shape.slice = w.rows % kSliceRows;
  if (shape.slice != 0) {
    KVANT_ASSIGN(out.rest, product(shape));
  }
  return out;
}

void BlockDense::Impl::round(const Rounding& rounding, const float* in, uint16_t* out,
                             Worker& worker) const {
  dnnl::memory from(rounding.in, engine, const_cast<float*>(in));
  dnnl::memory to(rounding.out, engine, out);
  rounding.primitive.execute(worker.stream, from, to);
  worker.stream.wait();
}

// `count` rows of the weights in the type that is multiplied: where they lie if they have it, else
// in the worker's memory.
const void* BlockDense::Impl::slice(const Cut& cut, const Product& product, int64_t first,
                                    int64_t count, Worker& worker) const {
  const Matrix& w = cut.job->linear->weight;
  const bool is_bf16 = cut.type == DataType::bf16;
  if (w.type == (is_bf16 ? GGML_TYPE_BF16 : GGML_TYPE_F32)) return w.row(first);
  const auto cols = static_cast<size_t>(w.cols);
  const size_t most = static_cast<size_t>(kSliceRows) * cols;
  worker.floats.reserve_discarding(most);
  if (w.pages != nullptr) {
    w.pages->to_floats(first / WeightPages::kPageRows, count, worker.floats.data());
  } else {
    for (int64_t r = 0; r < count; ++r) {
      to_floats(w.type, w.row(first + r), worker.floats.data() + static_cast<size_t>(r) * cols,
                w.cols);
    }
  }
  if (!is_bf16) return worker.floats.data();
  worker.weights.reserve_discarding(most);
  round(product.round_weights, worker.floats.data(), worker.weights.data(), worker);
  return worker.weights.data();
}

void BlockDense::Impl::multiply(const Item& item, std::span<const int> blocks, int index) {
  use_one_thread();
  Worker& worker = workers[static_cast<size_t>(index)];
  const Cut& cut = *item.cut;
  const Linear& linear = *cut.job->linear;
  const int64_t first = item.first;
  const int64_t count = std::min(kSliceRows, linear.weight.rows - first);
  const Product& p = count == kSliceRows ? *cut.whole : *cut.rest;

  worker.scratchpad.reserve_discarding(p.scratchpad.get_size());
  dnnl::memory weights(p.weights, engine, const_cast<void*>(slice(cut, p, first, count, worker)));
  dnnl::memory scratchpad(p.scratchpad, engine, worker.scratchpad.data());
  for (size_t b = item.begin; b < item.end; ++b) {
    const auto row = static_cast<size_t>(blocks[b]);
    const void* in =
        cut.type == DataType::bf16
            ? static_cast<const void*>(rounded.data() +
                                       b * kBlock * static_cast<size_t>(linear.weight.cols))
            : static_cast<const void*>(x + row * x_stride);
    float* out = cut.job->out + row * cut.job->out_stride + first;
    p.primitive.execute(worker.stream,
                        {{DNNL_ARG_SRC, dnnl::memory(p.x, engine, const_cast<void*>(in))},
                         {DNNL_ARG_WEIGHTS, weights},
                         {DNNL_ARG_DST, dnnl::memory(p.out, engine, out)},
                         {DNNL_ARG_SCRATCHPAD, scratchpad}});
    worker.stream.wait();
    if (linear.bias.empty()) continue;
    for (size_t r = 0; r < kBlock; ++r) {
      for (int64_t c = 0; c < count; ++c) {
        out[r * cut.job->out_stride + static_cast<size_t>(c)] +=
            linear.bias[static_cast<size_t>(first + c)];
      }
    }
  }
}

void BlockDense::Impl::round_activations(std::span<const int> blocks, int64_t cols) {
  const auto [at, is_new] = roundings.try_emplace({cols, x_stride});
  const auto rows = static_cast<int64_t>(kBlock);
  if (is_new) at->second = make_rounding(rows, cols, static_cast<int64_t>(x_stride), engine);
  const size_t block_size = kBlock * static_cast<size_t>(cols);
  rounded.reserve_discarding(blocks.size() * block_size);
  threads.run(blocks.size(), [&](size_t b, int worker) {
    use_one_thread();
    round(at->second, x + static_cast<size_t>(blocks[b]) * x_stride,
          rounded.data() + b * block_size, workers[static_cast<size_t>(worker)]);
  });
}

BlockDense::BlockDense(ThreadPool& threads) : impl_(std::make_unique<Impl>(threads)) {}
BlockDense::~BlockDense() = default;

std::string BlockDense::description(bool all_weights_f32) {
  return cpu_has_bf16() && !all_weights_f32 ? "oneDNN bf16" : "oneDNN f32";
}

Status BlockDense::run(std::span<const DenseJob> jobs, const float* x, size_t x_stride,
                       std::span<const int> blocks) try {
  use_one_thread();  // a primitive is made for as many threads as its maker may use
  Impl& impl = *impl_;
  impl.x = x;
  impl.x_stride = x_stride;
  impl.failure = {};
  std::vector<Cut> cuts;
  bool rounds = false;
  for (const DenseJob& job : jobs) {
    KVANT_ASSIGN(const Cut cut, impl.cut(job));
    cuts.push_back(cut);
    rounds = rounds || cut.type == DataType::bf16;
  }
  if (rounds) impl.round_activations(blocks, jobs[0].linear->weight.cols);
  const std::vector<Item> items =
      cut_into_items(cuts, blocks.size(), static_cast<size_t>(impl.threads.num_threads()));
  impl.threads.run(items.size(), [&](size_t item, int worker) {
    try {
      impl.multiply(items[item], blocks, worker);
    } catch (const std::exception& error) {
      std::lock_guard lock(impl.mutex);
      impl.failure = internal_error(std::string("oneDNN: ") + error.what());
    }
  });
  return impl.failure;
} catch (const dnnl::error& error) {
  return unsupported(std::string("oneDNN: ") + error.what());
}

}  // namespace kvant
