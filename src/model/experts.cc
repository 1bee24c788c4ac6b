// Mixture of experts: a router picks a few small gated MLPs per row, whose outputs are summed by
// its weights; shared experts run for every row beside them.
//
// Experts take the row path whatever the row's plan: which rows meet in one expert depends on the
// batch, and that path is the one in which a row's result doesn't. The sum runs in the order of the
// experts' numbers.
#include <algorithm>
#include <numeric>

#include "model/layers.h"

namespace kvant {
namespace {

enum : size_t { kScores = Scratch::kFirstFree, kGate, kUp, kDown };

struct GatedWeights {
  int size = 0;
  Linear gate, up, down;
};

struct Choice {
  int expert = 0;
  float weight = 0;
};

// The experts of one row by its softmaxed scores, which are used up.
void choose(const ExpertsSpec& spec, float* scores, std::span<Choice> chosen) {
  const int n = spec.num_experts;
  if (spec.num_groups > 1) {
    // Only the groups with the best experts compete.
    const int size = n / spec.num_groups;
    std::vector<int> groups(static_cast<size_t>(spec.num_groups));
    std::iota(groups.begin(), groups.end(), 0);
    const auto best = [&](int g) {
      return *std::max_element(scores + g * size, scores + (g + 1) * size);
    };
    std::stable_sort(groups.begin(), groups.end(), [&](int a, int b) { return best(a) > best(b); });
    for (int g : std::span(groups).subspan(static_cast<size_t>(spec.top_groups))) {
      std::fill(scores + g * size, scores + (g + 1) * size, 0.0f);
    }
  }
  float sum = 0;
  for (Choice& choice : chosen) {
    float* top = std::max_element(scores, scores + n);  // the first of equals
    choice = {static_cast<int>(top - scores), *top};
    sum += *top;
    *top = -1;
  }
  const float factor = spec.scale / (spec.normalize_top_k ? sum : 1.0f);
  for (Choice& choice : chosen) choice.weight *= factor;
}

class Experts final : public FeedForwardLayer {
 public:
  Status load(const LayerLoader& loader);
  Status run(StepContext& step, const float* x, float* out) const override;

 private:
  Status load_separate(const LayerLoader& loader);
  Status load_stacked(const LayerLoader& loader);
  // y = the MLP of x for the rows of `plan`, which `rows` lists.
  static Status run_mlp(StepContext& step, const GatedWeights& mlp, const RowPlan& plan,
                        std::span<const int> rows, const float* x, float* y);

  ExpertsSpec spec_;
  Linear router_;
  std::vector<GatedWeights> experts_;
  GatedWeights shared_;
};

Status Experts::load(const LayerLoader& loader) {
  spec_ = loader.spec.experts;
  const int64_t hidden = loader.spec.hidden_size;
  KVANT_ASSIGN(router_, loader.linear(Tensor::kRouter, spec_.num_experts, hidden, false));
  KVANT_TRY(spec_.stacked ? load_stacked(loader) : load_separate(loader));
  shared_.size = spec_.shared_size;
  if (shared_.size == 0) return {};
  KVANT_ASSIGN(shared_.gate, loader.linear(Tensor::kSharedGate, shared_.size, hidden, false));
  KVANT_ASSIGN(shared_.up, loader.linear(Tensor::kSharedUp, shared_.size, hidden, false));
  KVANT_ASSIGN(shared_.down, loader.linear(Tensor::kSharedDown, hidden, shared_.size, false));
  return {};
}

Status Experts::load_separate(const LayerLoader& loader) {
  const TensorNames& names = loader.spec.names;
  WeightLoader& weights = loader.weights;
  const int64_t hidden = loader.spec.hidden_size;
  const int64_t size = spec_.expert_size;
  for (int e = 0; e < spec_.num_experts; ++e) {
    GatedWeights expert;
    expert.size = spec_.expert_size;
    const auto load = [&](Tensor tensor, int64_t rows, int64_t cols, Linear& out) -> Status {
      KVANT_ASSIGN(Matrix matrix,
                   weights.matrix(names.weight(tensor, loader.layer, e), rows, cols));
      out.weight = weights.in_pages(std::move(matrix));
      return {};
    };
    KVANT_TRY(load(Tensor::kExpertGate, size, hidden, expert.gate));
    KVANT_TRY(load(Tensor::kExpertUp, size, hidden, expert.up));
    KVANT_TRY(load(Tensor::kExpertDown, hidden, size, expert.down));
    experts_.push_back(std::move(expert));
  }
  return {};
}

Status Experts::load_stacked(const LayerLoader& loader) {
  const int64_t hidden = loader.spec.hidden_size;
  const int64_t size = spec_.expert_size;
  const auto n = static_cast<size_t>(spec_.num_experts);
  const std::vector<int64_t> inner(n, size), outer(n, hidden);
  KVANT_ASSIGN(std::vector<Linear> gate, loader.fused(Tensor::kExpertGate, inner, hidden, false));
  KVANT_ASSIGN(std::vector<Linear> up, loader.fused(Tensor::kExpertUp, inner, hidden, false));
  KVANT_ASSIGN(std::vector<Linear> down, loader.fused(Tensor::kExpertDown, outer, size, false));
  for (size_t e = 0; e < n; ++e) {
    GatedWeights expert;
    expert.size = spec_.expert_size;
    expert.gate = std::move(gate[e]);
    expert.up = std::move(up[e]);
    expert.down = std::move(down[e]);
    experts_.push_back(std::move(expert));
  }
  return {};
}

Status Experts::run_mlp(StepContext& step, const GatedWeights& mlp, const RowPlan& plan,
                        std::span<const int> rows, const float* x, float* y) {
  const auto width = static_cast<size_t>(mlp.size);
  const auto hidden = static_cast<size_t>(step.spec.hidden_size);
  float* gate = step.scratch.floats(kGate, step.num_rows() * width);
  float* up = step.scratch.floats(kUp, step.num_rows() * width);
  const DenseJob in[] = {{&mlp.gate, gate, width}, {&mlp.up, up, width}};
  KVANT_TRY(step.dense.run(in, x, hidden, plan));
  step.threads.run(rows.size(), [&](size_t i, int) {
    const size_t at = static_cast<size_t>(rows[i]) * width;
    activate(step.spec.activation, gate + at, up + at, mlp.size);
  });
  const DenseJob out{&mlp.down, y, hidden};
  return step.dense.run({&out, 1}, gate, width, plan);
}

Status Experts::run(StepContext& step, const float* x, float* out) const {
  const size_t num_rows = step.num_rows();
  const auto hidden = static_cast<size_t>(step.spec.hidden_size);
  const auto num_experts = static_cast<size_t>(spec_.num_experts);
  const auto top_k = static_cast<size_t>(spec_.top_k);
  float* scores = step.scratch.floats(kScores, num_rows * num_experts);
  const DenseJob routing{&router_, scores, num_experts};
  KVANT_TRY(step.dense.run({&routing, 1}, x, hidden, step.plan));
  std::vector<Choice> chosen(num_rows * top_k);
  step.for_rows([&](size_t row, int) {
    softmax(scores + row * num_experts, spec_.num_experts);
    choose(spec_, scores + row * num_experts, std::span(chosen).subspan(row * top_k, top_k));
  });

  if (shared_.size > 0) {
    std::vector<int> all(num_rows);
    std::iota(all.begin(), all.end(), 0);
    KVANT_TRY(run_mlp(step, shared_, step.plan, all, x, out));
  } else {
    std::fill_n(out, num_rows * hidden, 0.0f);
  }
  float* y = step.scratch.floats(kDown, num_rows * hidden);
  for (int e = 0; e < spec_.num_experts; ++e) {
    RowPlan plan;
    std::vector<float> weights;
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i].expert != e) continue;
      plan.singles.push_back(static_cast<int>(i / top_k));
      weights.push_back(chosen[i].weight);
    }
    if (weights.empty()) continue;
    KVANT_TRY(run_mlp(step, experts_[static_cast<size_t>(e)], plan, plan.singles, x, y));
    step.threads.run(weights.size(), [&](size_t i, int) {
      const size_t at = static_cast<size_t>(plan.singles[i]) * hidden;
      for (size_t c = 0; c < hidden; ++c) out[at + c] += weights[i] * y[at + c];
    });
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<FeedForwardLayer>> load_experts(const LayerLoader& loader) {
  auto out = std::make_unique<Experts>();
  KVANT_TRY(out->load(loader));
  return std::unique_ptr<FeedForwardLayer>(std::move(out));
}

}  // namespace kvant
