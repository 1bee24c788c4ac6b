// ggml's own flash attention as a subject of the attention benchmark: one graph per layer, on
// ggml's own thread pool.

#include <fmt/format.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_types.h"
#include "evaluate/attention_bench.h"
#include "model/ggml_cpu.h"

namespace kvant {
namespace {

// Wide enough for 4-bit types on random data, far too narrow for a wrong head or mask.
constexpr double kBound = 0.3;

struct Functions {
  decltype(&ggml_graph_plan) plan;
  decltype(&ggml_graph_compute) compute;
  decltype(&ggml_threadpool_new) new_pool;
  decltype(&ggml_threadpool_free) free_pool;
  decltype(&ggml_threadpool_pause) pause;
  decltype(&ggml_threadpool_resume) resume;
};

template <typename F>
void find(F& f, const char* name) {
  f = reinterpret_cast<F>(ggml_cpu_symbol(name));
}

Result<Functions> find_functions() {
  KVANT_TRY(load_ggml_cpu());
  Functions f;
  find(f.plan, "ggml_graph_plan");
  find(f.compute, "ggml_graph_compute");
  find(f.new_pool, "ggml_threadpool_new");
  find(f.free_pool, "ggml_threadpool_free");
  find(f.pause, "ggml_threadpool_pause");
  find(f.resume, "ggml_threadpool_resume");
  if (!f.plan || !f.compute || !f.new_pool || !f.free_pool || !f.pause || !f.resume) {
    return unsupported("ggml's CPU library doesn't export its graph functions");
  }
  return f;
}

ggml_type type_named(std::string_view name) {
  for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
    const char* known = ggml_type_name(static_cast<ggml_type>(t));
    if (known != nullptr && name == known) return static_cast<ggml_type>(t);
  }
  return GGML_TYPE_COUNT;
}

class GgmlSubject : public AttentionSubject {
 public:
  GgmlSubject(ggml_type type, const AttentionData& data, const Functions& functions, int threads)
      : type_(type),
        data_(data),
        s_(data.shape),
        f_(functions),
        num_tokens_(s_.tokens.front() + s_.queries),
        num_threads_(threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    pool_ = f_.new_pool(&params);
    const size_t row = ggml_row_size(type, s_.dim);
    const size_t rows = static_cast<size_t>(num_tokens_) * static_cast<size_t>(s_.kv_heads);
    const size_t queries = static_cast<size_t>(s_.queries);
    const size_t mask = queries * static_cast<size_t>(num_tokens_) * 2;
    const size_t per_layer =
        2 * rows * row + queries * static_cast<size_t>(s_.heads * s_.dim) * 4 + (1u << 20);
    context_ =
        ggml_init({.mem_size = per_layer * static_cast<size_t>(s_.layers) + mask +
                               queries * static_cast<size_t>(s_.heads * s_.dim) * 4 + (1u << 20),
                   .mem_buffer = nullptr,
                   .no_alloc = false});
    build();
  }
  ~GgmlSubject() override {
    ggml_free(context_);
    f_.free_pool(pool_);
  }

  std::string name() const override { return fmt::format("ggml/{}", ggml_type_name(type_)); }
  double bytes() const override {
    return 2.0 * static_cast<double>(ggml_row_size(type_, s_.dim)) * num_tokens_ * s_.kv_heads;
  }

  Result<double> check() override {
    f_.resume(pool_);
    const Status status = compute(0);
    f_.pause(pool_);
    KVANT_TRY(status);
    const size_t size = static_cast<size_t>(s_.heads) * static_cast<size_t>(s_.dim);
    const float* out =
        static_cast<const float*>(outputs_[0]->data) + static_cast<size_t>(s_.queries - 1) * size;
    const double error = relative_error(
        {out, size}, data_.attend(data_.k.data(), data_.v.data(), s_.queries - 1, num_tokens_));
    if (!(error <= kBound))
      return internal_error(fmt::format("{} is off by {:.2g} of its size", name(), error));
    return error;
  }

  // ggml's threads spin while they wait for work: they are paused while others are timed.
  Result<double> time_once() override {
    f_.resume(pool_);
    const auto start = std::chrono::steady_clock::now();
    Status status;
    for (int layer = 0; layer < s_.layers && status.ok(); ++layer)
      status = compute(static_cast<size_t>(layer));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    f_.pause(pool_);
    KVANT_TRY(status);
    return seconds / s_.layers;
  }

 private:
  // [tokens][heads][dim] → the tensor's [heads][tokens][dim], converted.
  ggml_tensor* cache_tensor(const std::vector<float>& rows) {
    ggml_tensor* t = ggml_new_tensor_3d(context_, type_, s_.dim, num_tokens_, s_.kv_heads);
    const auto dim = static_cast<size_t>(s_.dim), heads = static_cast<size_t>(s_.kv_heads);
    const size_t row_bytes = ggml_row_size(type_, s_.dim);
    for (size_t h = 0; h < heads; ++h) {
      for (size_t i = 0; i < static_cast<size_t>(num_tokens_); ++i) {
        char* out =
            static_cast<char*>(t->data) + (h * static_cast<size_t>(num_tokens_) + i) * row_bytes;
        ggml_quantize_chunk(type_, rows.data() + (i * heads + h) * dim, out, 0, 1, s_.dim, nullptr);
      }
    }
    return t;
  }

  // Query i sees the tokens before the step and those of the step up to itself.
  ggml_tensor* causal_mask() {
    ggml_tensor* mask = ggml_new_tensor_2d(context_, GGML_TYPE_F16, num_tokens_, s_.queries);
    auto* out = static_cast<uint16_t*>(mask->data);
    const uint16_t hidden = f32_to_f16(-std::numeric_limits<float>::infinity());
    for (int i = 0; i < s_.queries; ++i) {
      for (int t = 0; t < num_tokens_; ++t)
        *out++ = t <= s_.tokens.front() + i ? uint16_t{0} : hidden;
    }
    return mask;
  }

  ggml_tensor* query_tensor() {
    ggml_tensor* q = ggml_new_tensor_3d(context_, GGML_TYPE_F32, s_.dim, s_.queries, s_.heads);
    const auto dim = static_cast<size_t>(s_.dim), heads = static_cast<size_t>(s_.heads),
               n = static_cast<size_t>(s_.queries);
    for (size_t h = 0; h < heads; ++h) {
      for (size_t i = 0; i < n; ++i) {
        std::memcpy(static_cast<float*>(q->data) + (h * n + i) * dim,
                    data_.q.data() + (i * heads + h) * dim, dim * 4);
      }
    }
    return q;
  }

  void build() {
    ggml_tensor* q = query_tensor();
    ggml_tensor* mask = s_.queries > 1 ? causal_mask() : nullptr;
    const auto scale = static_cast<float>(1 / std::sqrt(s_.dim));
    for (int layer = 0; layer < s_.layers; ++layer) {
      ggml_tensor* k = cache_tensor(data_.k);
      ggml_tensor* v = cache_tensor(data_.v);
      ggml_tensor* out = ggml_flash_attn_ext(context_, q, k, v, mask, scale, 0, 0);
      ggml_cgraph* graph = ggml_new_graph_custom(context_, 16, false);
      ggml_build_forward_expand(graph, out);
      ggml_cplan plan = f_.plan(graph, num_threads_, pool_);
      work_.resize(std::max(work_.size(), plan.work_size));
      outputs_.push_back(out);
      graphs_.push_back(graph);
      plans_.push_back(plan);
    }
    for (ggml_cplan& plan : plans_) plan.work_data = work_.data();
  }

  Status compute(size_t layer) {
    if (f_.compute(graphs_[layer], &plans_[layer]) != GGML_STATUS_SUCCESS)
      return internal_error(name() + " failed");
    return {};
  }

  const ggml_type type_;
  const AttentionData& data_;
  const AttentionShape& s_;
  const Functions f_;
  const int num_tokens_;
  const int num_threads_;
  ggml_threadpool* pool_ = nullptr;
  ggml_context* context_ = nullptr;
  std::vector<ggml_tensor*> outputs_;
  std::vector<ggml_cgraph*> graphs_;
  std::vector<ggml_cplan> plans_;
  std::vector<uint8_t> work_;
};

}  // namespace

Result<std::unique_ptr<AttentionSubject>> ggml_attention(const std::string& type,
                                                         const AttentionData& data, int threads) {
  if (data.num_sequences() != 1)
    return unsupported(fmt::format("ggml/{} left out: it attends to one sequence", type));
  KVANT_ASSIGN(const Functions functions, find_functions());
  const ggml_type t = type_named(type);
  if (t == GGML_TYPE_COUNT)
    return unsupported(fmt::format("ggml/{} left out: ggml has no such type", type));
  if (data.shape.dim % ggml_blck_size(t) != 0) {
    return unsupported(fmt::format("ggml/{} left out: its blocks of {} don't divide {} channels",
                                   type, ggml_blck_size(t), data.shape.dim));
  }
  return std::unique_ptr<AttentionSubject>(
      std::make_unique<GgmlSubject>(t, data, functions, threads));
}

}  // namespace kvant
