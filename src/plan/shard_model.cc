// Tensor and pipeline parallelism as a change of shape: what is left of a model on one device is a
// smaller model, planned like any other.
#include <algorithm>
#include <functional>

#include "kvant/plan.h"

namespace kvant {
namespace {

constexpr int kMaxRanks = 1 << 16;
constexpr size_t kShownSizes = 12;

Status check_ranks(const char* what, int ranks) {
  if (ranks >= 1 && ranks <= kMaxRanks) return {};
  return invalid_argument(std::string(what) + ": " + std::to_string(ranks) + ", wanted 1 to " +
                          std::to_string(kMaxRanks));
}

// "1-3, 6, 12": the sizes up to `limit` that work.
std::string working_sizes(int limit, const std::function<bool(int)>& works) {
  std::string list;
  size_t count = 0;
  for (int n = 1; n <= limit; ++n) {
    if (!works(n)) continue;
    int last = n;
    while (last < limit && works(last + 1)) ++last;
    if (last == n + 1) last = n;  // "1, 2" is no longer than "1-2"
    if (++count > kShownSizes) return list + ", …";
    list += (list.empty() ? "" : ", ") + std::to_string(n);
    if (last > n) list += "-" + std::to_string(last);
    n = last;
  }
  return list;
}

// Heads are split where the ranks divide them, and copied where they divide the ranks.
bool splits(int heads, int ranks) { return heads % ranks == 0; }
bool splits_or_copies(int heads, int ranks) { return splits(heads, ranks) || ranks % heads == 0; }

bool tensor_works(const ModelShape& shape, int ranks) {
  if (shape.num_query_heads > 0 && shape.num_query_heads % ranks != 0) return false;
  for (const ModelLayer& layer : shape.layers) {
    for (const CacheStream& stream : layer.streams) {
      if (!splits_or_copies(stream.heads, ranks)) return false;
    }
    if (layer.state.heads > 0 && !splits(layer.state.heads, ranks)) return false;
  }
  return true;
}

// The first layers of the stages, and the number of layers at the end: earlier stages take one more
// where they don't divide.
std::vector<int> stage_starts(int num_layers, int stages) {
  std::vector<int> starts{0};
  for (int s = 0; s < stages; ++s) {
    starts.push_back(starts.back() + num_layers / stages + (s < num_layers % stages ? 1 : 0));
  }
  return starts;
}

// A layer that reads another's cache stands on the device that holds it.
bool pipeline_works(const ModelShape& shape, int stages) {
  const int num_layers = static_cast<int>(shape.layers.size());
  if (stages > num_layers) return false;
  const std::vector<int> starts = stage_starts(num_layers, stages);
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    for (int l = starts[s]; l < starts[s + 1]; ++l) {
      const int owner = shape.layers[static_cast<size_t>(l)].shares;
      if (owner >= 0 && owner < starts[s]) return false;
    }
  }
  return true;
}

bool has_state(const ModelShape& shape) {
  return std::any_of(shape.layers.begin(), shape.layers.end(),
                     [](const ModelLayer& layer) { return !layer.state.is_empty(); });
}

// What copying costs is said once for each kind.
struct Copied {
  bool heads = false, latents = false, states = false;
};

ModelLayer share_of(ModelLayer layer, int ranks, Copied& copied) {
  if (ranks == 1) return layer;
  for (CacheStream& stream : layer.streams) {
    if (!splits(stream.heads, ranks)) {
      (stream.v_dim == 0 ? copied.latents : copied.heads) = true;
    }
    stream.heads = std::max(1, stream.heads / ranks);
  }
  if (layer.state.heads == 0) {
    copied.states |= !layer.state.is_empty();
    return layer;
  }
  layer.state.heads /= ranks;
  layer.state.recurrent_elements /= ranks;
  layer.state.conv_elements /= ranks;
  return layer;
}

void note_copies(const Copied& copied, int ranks, std::vector<std::string>& notes) {
  const std::string on_all = " on each of the " + std::to_string(ranks) + " tensor ranks";
  if (copied.heads)
    notes.push_back("there are fewer KV heads than tensor ranks: heads are replicated, one" +
                    on_all);
  if (copied.latents)
    notes.push_back("latents and indexer keys have one head: they are replicated, whole" + on_all);
  if (copied.states)
    notes.push_back("constant state whose heads aren't known is counted whole" + on_all);
}

}  // namespace

Result<std::vector<ModelStage>> shard_model(const ModelShape& shape, const Sharding& sharding) {
  KVANT_TRY(check_ranks("tensor parallelism", sharding.tensor));
  KVANT_TRY(check_ranks("pipeline parallelism", sharding.pipeline));
  KVANT_TRY(check_ranks("context parallelism", sharding.context));
  const int ranks = sharding.tensor;
  if (!tensor_works(shape, ranks)) {
    return invalid_argument("tensor parallelism of " + std::to_string(ranks) +
                            " doesn't divide the heads of " + shape.architecture +
                            "; sizes that work: " +
                            working_sizes(std::max(1, shape.num_query_heads),
                                          [&](int n) { return tensor_works(shape, n); }));
  }
  const int num_layers = static_cast<int>(shape.layers.size());
  if (!pipeline_works(shape, sharding.pipeline)) {
    const std::string why = sharding.pipeline > num_layers
                                ? ": the model has " + std::to_string(num_layers) + " layers"
                                : ": a layer would read the cache of another stage's layer";
    return invalid_argument("pipeline parallelism of " + std::to_string(sharding.pipeline) + why +
                            "; sizes that work: " + working_sizes(num_layers, [&](int n) {
                              return pipeline_works(shape, n);
                            }));
  }
  const std::vector<int> starts = stage_starts(num_layers, sharding.pipeline);
  std::vector<ModelStage> stages;
  Copied copied;
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    ModelStage stage{.shape = shape, .first_layer = starts[s]};
    stage.shape.layers.clear();
    for (int l = starts[s]; l < starts[s + 1]; ++l) {
      ModelLayer layer = share_of(shape.layers[static_cast<size_t>(l)], ranks, copied);
      if (layer.shares >= 0) layer.shares -= starts[s];
      stage.shape.layers.push_back(std::move(layer));
    }
    stage.shape.num_query_heads = shape.num_query_heads / ranks;
    stages.push_back(std::move(stage));
  }
  for (ModelStage& stage : stages) note_copies(copied, ranks, stage.shape.notes);
  if (sharding.context > 1 && has_state(shape)) {
    stages.front().shape.notes.push_back("constant state is counted whole on each of the " +
                                         std::to_string(sharding.context) + " context ranks");
  }
  return stages;
}

}  // namespace kvant
