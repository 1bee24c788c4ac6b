// The architectures that the planner knows: which reader turns a configuration into layers, and
// what the model's own class takes for a field that the configuration leaves out.
//
// To add one: its line in architectures.def, and where no reader fits, one function in readers.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kvant/plan.h"

namespace kvant {

class ConfigReader;

// Which layers see a window where layer_types doesn't say.
enum class Windows : uint8_t {
  kNone,       // none, whatever sliding_window says: the class doesn't read it
  kAll,        // all of them
  kPeriod,     // all but the last of every ClassDefaults::period
  kFromLayer,  // from max_window_layers on, and only where use_sliding_window says so
};

// The feed-forward part, where parameters can be counted.
enum class FeedForward : uint8_t {
  kUnknown,
  kGated,     // three matrices
  kPlain,     // two
  kHalved,    // three, of half the declared width
  kAdjusted,  // three, of two thirds of the declared width, up to a multiple of 256
};

// What Transformers' class takes for an absent field. The numbers of layers, heads and positions
// and the hidden size are only taken inside a wrapper, whose text_config holds what differs from
// the class; a config.json itself that lacks them is no model's.
struct ClassDefaults {
  int layers = 0, heads = 0, hidden = 0;
  int kv_heads = 0;  // 0: as many as query heads
  int head_dim = 0;  // 0: hidden size / heads
  int64_t window = 0;
  int64_t positions = 0;
  int64_t vocabulary = 0;
  Windows windows = Windows::kNone;
  int period = 0;
  int shared_layers = 0;     // num_kv_shared_layers
  bool multi_query = false;  // one K and V head unless multi_query says otherwise
  FeedForward feed_forward = FeedForward::kUnknown;
  bool tied = false;               // the embeddings are the output matrix, too
  bool learned_positions = false;  // an embedding for each
  bool qk_norm = false;            // q and k are normalised, in every layer
};

struct Architecture {
  std::string_view model_type;
  Status (*read)(const ConfigReader& config, ModelShape& shape);
  ClassDefaults defaults = {};
};

std::span<const Architecture> all_architectures();

// nullptr for one that isn't known.
const Architecture* find_architecture(std::string_view model_type);
// By a class's name, "Qwen2MoeForCausalLM": model types without underscores; nullptr likewise.
const Architecture* find_architecture_of_class(std::string_view class_name);
// Stands for all that aren't known: standard fields, with a note that says so.
const Architecture& unknown_architecture();

}  // namespace kvant
