// The usual feed-forward part: down(act(gate(x)) · up(x)).
#include "model/layers.h"

namespace kvant {
namespace {

enum : size_t { kGate = Scratch::kFirstFree, kUp };

class GatedMlp final : public FeedForwardLayer {
 public:
  Status load(const LayerLoader& loader) {
    const DecoderSpec& spec = loader.spec;
    const int64_t hidden = spec.hidden_size;
    size_ = loader.layer_spec().ffn_size;
    if (spec.fused_gate_up) {
      const int64_t counts[] = {size_, size_};
      KVANT_ASSIGN(std::vector<Linear> parts,
                   loader.fused(Tensor::kGateUp, counts, hidden, spec.mlp_bias));
      gate_ = std::move(parts[0]);
      up_ = std::move(parts[1]);
    } else {
      KVANT_ASSIGN(gate_, loader.linear(Tensor::kGate, size_, hidden, spec.mlp_bias));
      KVANT_ASSIGN(up_, loader.linear(Tensor::kUp, size_, hidden, spec.mlp_bias));
    }
    KVANT_ASSIGN(down_, loader.linear(Tensor::kDown, hidden, size_, spec.mlp_bias));
    return {};
  }

  Status run(StepContext& step, const float* x, float* out) const override {
    const auto width = static_cast<size_t>(size_);
    const auto hidden = static_cast<size_t>(step.spec.hidden_size);
    float* gate = step.scratch.floats(kGate, step.num_rows() * width);
    float* up = step.scratch.floats(kUp, step.num_rows() * width);
    const DenseJob in[] = {{&gate_, gate, width}, {&up_, up, width}};
    KVANT_TRY(step.dense.run(in, x, hidden, step.plan));
    step.for_rows([&](size_t row, int) {
      activate(step.spec.activation, gate + row * width, up + row * width, size_);
    });
    const DenseJob down{&down_, out, hidden};
    return step.dense.run({&down, 1}, gate, width, step.plan);
  }

 private:
  int size_ = 0;
  Linear gate_, up_, down_;
};

}  // namespace

Result<std::unique_ptr<FeedForwardLayer>> load_gated_mlp(const LayerLoader& loader) {
  auto out = std::make_unique<GatedMlp>();
  KVANT_TRY(out->load(loader));
  return std::unique_ptr<FeedForwardLayer>(std::move(out));
}

}  // namespace kvant
