// A tiny Llama with random weights, written as a Hugging Face directory: for tests that need a head
// of another width than the committed models have. What it computes means nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../files/temp_file.h"
#include "base/rng.h"

namespace kvant {

struct RandomModelShape {
  int hidden = 32;
  int layers = 2;
  int heads = 2;
  int kv_heads = 1;
  int head_dim = 128;
  int ffn = 32;
  int vocabulary = 288;
  std::vector<int> biased_layers = {};  // their K has a huge constant on three channels
};

class RandomModel {
 public:
  explicit RandomModel(const RandomModelShape& shape) : shape_(shape) {
    folder_.write("config.json", config().dump());
    add("model.embed_tokens.weight", {shape.vocabulary, shape.hidden});
    add("model.norm.weight", {shape.hidden});
    for (int l = 0; l < shape.layers; ++l) add_layer(l);
    write_weights("model.safetensors");
  }
  const std::filesystem::path& path() const { return folder_.path(); }
  const TempFolder& folder() const { return folder_; }

  nlohmann::json config() const {
    return {{"model_type", "llama"},
            {"hidden_size", shape_.hidden},
            {"num_hidden_layers", shape_.layers},
            {"num_attention_heads", shape_.heads},
            {"num_key_value_heads", shape_.kv_heads},
            {"head_dim", shape_.head_dim},
            {"intermediate_size", shape_.ffn},
            {"vocab_size", shape_.vocabulary},
            {"max_position_embeddings", 4096},
            {"rms_norm_eps", 1e-5},
            {"attention_bias", !shape_.biased_layers.empty()},
            {"tie_word_embeddings", true}};
  }

  // One more tensor, beyond what the model needs; write_weights() puts it into the file.
  void add(const std::string& name, const std::vector<int>& shape) {
    size_t count = 1;
    for (const int n : shape) count *= static_cast<size_t>(n);
    const float scale = shape.size() < 2 ? 0.1f : 1 / std::sqrt(static_cast<float>(shape.back()));
    std::vector<float> values(count);
    for (float& x : values) x = scale * rng_.normal() + (shape.size() < 2 ? 1.0f : 0.0f);
    add_values(name, shape, values);
  }
  void add_values(const std::string& name, const std::vector<int>& shape,
                  const std::vector<float>& values) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header_[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }
  void write_weights(const std::string& file) const {
    const std::string header = header_.dump();
    const uint64_t size = header.size();
    std::string bytes(sizeof size, '\0');
    std::memcpy(bytes.data(), &size, sizeof size);
    folder_.write(file, bytes + header + data_);
  }

 private:
  void add_layer(int layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const int q = shape_.heads * shape_.head_dim, kv = shape_.kv_heads * shape_.head_dim;
    add(prefix + "input_layernorm.weight", {shape_.hidden});
    add(prefix + "post_attention_layernorm.weight", {shape_.hidden});
    add(prefix + "self_attn.q_proj.weight", {q, shape_.hidden});
    add(prefix + "self_attn.k_proj.weight", {kv, shape_.hidden});
    add(prefix + "self_attn.v_proj.weight", {kv, shape_.hidden});
    add(prefix + "self_attn.o_proj.weight", {shape_.hidden, q});
    if (!shape_.biased_layers.empty()) add_biases(layer, prefix + "self_attn.", q, kv);
    add(prefix + "mlp.gate_proj.weight", {shape_.ffn, shape_.hidden});
    add(prefix + "mlp.up_proj.weight", {shape_.ffn, shape_.hidden});
    add(prefix + "mlp.down_proj.weight", {shape_.hidden, shape_.ffn});
  }

  void add_biases(int layer, const std::string& prefix, int q, int kv) {
    const std::vector<int>& biased = shape_.biased_layers;
    const bool huge = std::find(biased.begin(), biased.end(), layer) != biased.end();
    std::vector<float> k(static_cast<size_t>(kv), 0.0f);
    for (int head = 0; huge && head < shape_.kv_heads; ++head) {
      for (const int channel : {1, 5, 11})
        k[static_cast<size_t>(head * shape_.head_dim + channel)] = 500;
    }
    add_values(prefix + "q_proj.bias", {q}, std::vector<float>(static_cast<size_t>(q), 0.0f));
    add_values(prefix + "k_proj.bias", {kv}, k);
    add_values(prefix + "v_proj.bias", {kv}, std::vector<float>(static_cast<size_t>(kv), 0.0f));
    add_values(prefix + "o_proj.bias", {shape_.hidden},
               std::vector<float>(static_cast<size_t>(shape_.hidden), 0.0f));
  }

  RandomModelShape shape_;
  TempFolder folder_;
  Rng rng_{17};
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

}  // namespace kvant
