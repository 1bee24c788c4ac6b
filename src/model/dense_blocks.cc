// The block path: 64 rows times a slice of 64 weight rows per oneDNN call. An item is one slice of
// one job and up to eight blocks: the slice is dequantized into the worker's scratch memory (it
// stays in the second-level cache), then multiplied with each block. Measured on AVX2 (Milan, one
// thread): 80 to 86 GFLOP/s for 64 x K x 64, as much as for any larger shape.
#include <ggml.h>

#include <algorithm>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <tuple>

#include "base/bytes.h"
#include "base/float_types.h"
#include "model/dense.h"
#include "model/ggml_cpu.h"
#include "simd/cpu.h"

// Debian's oneDNN is built with OpenMP: each of our threads tells it to use no others.
extern "C" void omp_set_num_threads(int);

namespace kvant {
namespace {

constexpr int64_t kSliceRows = 64;
constexpr size_t kBlocksPerItem = 8;
constexpr size_t kBlock = RowPlan::kBlockRows;

using DataType = dnnl::memory::data_type;

DataType compute_type(const Matrix& w) {
  return w.type != GGML_TYPE_F32 && cpu_has_bf16() ? DataType::bf16 : DataType::f32;
}
size_t element_bytes(DataType type) { return type == DataType::bf16 ? 2 : 4; }

void to_bf16(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = f32_to_bf16(in[i]);
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

struct Product {
  dnnl::matmul primitive;
  dnnl::memory::desc x, weights, out, scratchpad;
};

// One job cut into items.
struct Cut {
  const DenseJob* job;
  DataType type;
  const Product* whole;  // slices of kSliceRows
  const Product* rest;   // the last slice; nullptr if it is whole
  size_t first_item;
};

}  // namespace

struct BlockDense::Impl {
  // What one thread needs for itself.
  struct Worker {
    dnnl::stream stream;
    AlignedArray<std::byte> weights;  // [kSliceRows][cols]
    AlignedArray<float> floats;       // one row on its way to bf16
    AlignedArray<std::byte> scratchpad;
  };

  explicit Impl(ThreadPool& pool) : threads(pool), engine(dnnl::engine::kind::cpu, 0) {
    for (int i = 0; i < threads.num_threads(); ++i)
      workers.push_back({dnnl::stream(engine), {}, {}, {}});
  }

  Result<const Product*> product(const Shape& shape);
  Result<Cut> cut(const DenseJob& job, size_t x_stride, size_t first_item);
  const void* slice(const Cut& cut, int64_t first, int64_t count, Worker& worker) const;
  void multiply(const Cut& cut, size_t item, std::span<const int> blocks, int worker);
  void round_activations(const float* x, size_t x_stride, std::span<const int> blocks,
                         int64_t cols);

  ThreadPool& threads;
  dnnl::engine engine;
  std::vector<Worker> workers;
  std::map<Shape, Product> products;
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
  p.scratchpad = description.scratchpad_desc();
  return &products.emplace(shape, std::move(p)).first->second;
}

Result<Cut> BlockDense::Impl::cut(const DenseJob& job, size_t stride, size_t first_item) {
  const Matrix& w = job.linear->weight;
  const DataType type = compute_type(w);
  Cut out{&job, type, nullptr, nullptr, first_item};
  Shape shape{type, w.cols, kSliceRows,
              type == DataType::bf16 ? w.cols : static_cast<int64_t>(stride),
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

// `count` rows of the weights in the type that is multiplied: where they lie if they have it, else
// in the worker's memory.
const void* BlockDense::Impl::slice(const Cut& cut, int64_t first, int64_t count,
                                    Worker& worker) const {
  const Matrix& w = cut.job->linear->weight;
  const bool is_bf16 = cut.type == DataType::bf16;
  if (w.type == (is_bf16 ? GGML_TYPE_BF16 : GGML_TYPE_F32)) return w.row(first);
  const auto cols = static_cast<size_t>(w.cols);
  worker.weights.reserve_discarding(static_cast<size_t>(kSliceRows) * cols *
                                    element_bytes(cut.type));
  worker.floats.reserve_discarding(cols);
  for (int64_t r = 0; r < count; ++r) {
    std::byte* out =
        worker.weights.data() + static_cast<size_t>(r) * cols * element_bytes(cut.type);
    if (is_bf16) {
      to_floats(w.type, w.row(first + r), worker.floats.data(), w.cols);
      to_bf16(worker.floats.data(), reinterpret_cast<uint16_t*>(out), w.cols);
    } else {
      to_floats(w.type, w.row(first + r), reinterpret_cast<float*>(out), w.cols);
    }
  }
  return worker.weights.data();
}

void BlockDense::Impl::multiply(const Cut& cut, size_t item, std::span<const int> blocks,
                                int index) {
  thread_local const bool alone = (omp_set_num_threads(1), true);
  (void)alone;
  Worker& worker = workers[static_cast<size_t>(index)];
  const Linear& linear = *cut.job->linear;
  const size_t groups = (blocks.size() + kBlocksPerItem - 1) / kBlocksPerItem;
  const int64_t first = static_cast<int64_t>(item / groups) * kSliceRows;
  const int64_t count = std::min(kSliceRows, linear.weight.rows - first);
  const Product& p = count == kSliceRows ? *cut.whole : *cut.rest;
  const size_t begin = item % groups * kBlocksPerItem;
  const size_t end = std::min(begin + kBlocksPerItem, blocks.size());

  worker.scratchpad.reserve_discarding(p.scratchpad.get_size());
  dnnl::memory weights(p.weights, engine, const_cast<void*>(slice(cut, first, count, worker)));
  dnnl::memory scratchpad(p.scratchpad, engine, worker.scratchpad.data());
  for (size_t b = begin; b < end; ++b) {
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

void BlockDense::Impl::round_activations(const float* in, size_t stride,
                                         std::span<const int> blocks, int64_t cols) {
  const auto width = static_cast<size_t>(cols);
  rounded.reserve_discarding(blocks.size() * kBlock * width);
  threads.run(blocks.size(), [&](size_t b, int) {
    for (size_t r = 0; r < kBlock; ++r) {
      to_bf16(in + (static_cast<size_t>(blocks[b]) + r) * stride,
              rounded.data() + (b * kBlock + r) * width, cols);
    }
  });
}

BlockDense::BlockDense(ThreadPool& threads) : impl_(std::make_unique<Impl>(threads)) {}
BlockDense::~BlockDense() = default;

std::string BlockDense::description() { return cpu_has_bf16() ? "oneDNN bf16" : "oneDNN f32"; }

Status BlockDense::run(std::span<const DenseJob> jobs, const float* x, size_t x_stride,
                       std::span<const int> blocks) try {
  Impl& impl = *impl_;
  impl.x = x;
  impl.x_stride = x_stride;
  impl.failure = {};
  const size_t groups = (blocks.size() + kBlocksPerItem - 1) / kBlocksPerItem;
  std::vector<Cut> cuts;
  size_t num_items = 0;
  bool rounds = false;
  for (const DenseJob& job : jobs) {
    KVANT_ASSIGN(const Cut cut, impl.cut(job, x_stride, num_items));
    cuts.push_back(cut);
    num_items +=
        static_cast<size_t>((job.linear->weight.rows + kSliceRows - 1) / kSliceRows) * groups;
    rounds = rounds || cut.type == DataType::bf16;
  }
  if (rounds) impl.round_activations(x, x_stride, blocks, jobs[0].linear->weight.cols);
  impl.threads.run(num_items, [&](size_t item, int worker) {
    size_t c = cuts.size() - 1;
    while (item < cuts[c].first_item) --c;
    try {
      impl.multiply(cuts[c], item - cuts[c].first_item, blocks, worker);
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
