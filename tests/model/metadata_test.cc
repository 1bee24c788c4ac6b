// Metadata that lies or lacks something, beyond the cases of configs_test: sizes, GGUF keys,
// tensors that nothing uses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../files/gguf_builder.h"
#include "../files/temp_file.h"
#include "model/checkpoint_scales.h"
#include "model/families.h"
#include "model/open_decoder.h"
#include "random_model.h"

namespace kvant {
namespace {

using ::testing::HasSubstr;

// A Llama configuration of 2 layers, hidden 48, 4 heads; `fields` come first and so may not repeat
// these.
std::string llama(const std::string& fields,
                  const std::string& heads = R"("num_attention_heads":4,)") {
  return R"({"model_type":"llama","hidden_size":48,"num_hidden_layers":2,"intermediate_size":96,"vocab_size":100,)" +
         heads + fields + R"("rms_norm_eps":1e-5})";
}

Result<DecoderSpec> spec_of(const std::string& json, int64_t context = 0) {
  auto document = JsonDocument::parse(json, "config.json");
  if (!document.ok()) return document.status();
  return read_spec(document->root(), context);
}

std::string refusal(const std::string& json) {
  auto spec = spec_of(json);
  EXPECT_FALSE(spec.ok());
  return spec.status().message();
}

TEST(HfConfig, WrongScalingsAreNamed) {
  EXPECT_THAT(refusal(llama(R"("rope_scaling":{"rope_type":"linear","factor":0},)")),
              HasSubstr("factor"));
  EXPECT_THAT(refusal(llama(R"("rope_scaling":{"rope_type":"llama3","factor":2},)")),
              HasSubstr("original_max_position_embeddings"));
  EXPECT_THAT(refusal(llama(R"("rope_scaling":[1],)")),
              HasSubstr("rope_scaling: [1], wanted an object"));
}

TEST(HfConfig, AbsurdSizesAreRefusedBeforeAnythingIsAllocated) {
  EXPECT_THAT(refusal(R"({"model_type":"llama","hidden_size":1e15})"), HasSubstr("hidden_size"));
  EXPECT_THAT(refusal(llama(R"("max_position_embeddings":-4,)")),
              HasSubstr("max_position_embeddings: -4"));
}

TEST(HfConfig, LongropeTakesTheFactorsOfTheContextAskedFor) {
  const std::string config = llama(
      R"("max_position_embeddings":256,"original_max_position_embeddings":64,"rope_scaling":{"type":"longrope",)"
      R"("short_factor":[1,1,1,1,1,1],"long_factor":[2,2,2,2,2,2]},)");
  auto near = spec_of(config, 64);
  auto far = spec_of(config, 65);
  ASSERT_TRUE(near.ok() && far.ok()) << near.status().message();
  EXPECT_EQ(near->ropes[0].inv_freq[0], 1.0f);
  EXPECT_EQ(far->ropes[0].inv_freq[0], 0.5f);
  EXPECT_EQ(near->max_positions, 64);
  EXPECT_EQ(far->max_positions, 256);
}

class GgufConfig : public ::testing::Test {
 protected:
  Result<DecoderSpec> spec_of(GgufBuilder builder) {
    builder.tensor("token_embd.weight", 0, {8, 4}, std::string(128, '\0'));
    auto file = GgufFile::open(folder_.write("m.gguf", builder.bytes()));
    EXPECT_TRUE(file.ok()) << file.status().message();
    return read_spec(**file, 0);
  }
  std::string refusal(const GgufBuilder& builder) {
    auto spec = spec_of(builder);
    EXPECT_FALSE(spec.ok());
    return spec.status().message();
  }
  // Two layers, hidden 48, 4 heads.
  static GgufBuilder small(const std::string& architecture) {
    GgufBuilder b;
    b.string("general.architecture", architecture);
    for (const auto& [key, value] : {std::pair{"embedding_length", 48u},
                                     {"attention.head_count", 4u},
                                     {"block_count", 2u},
                                     {"context_length", 256u},
                                     {"feed_forward_length", 96u}}) {
      b.u32(architecture + "." + key, value);
    }
    return b;
  }
  TempFolder folder_;
};

TEST_F(GgufConfig, MissingAndWrongKeysAreNamed) {
  GgufBuilder empty;
  EXPECT_THAT(refusal(empty), HasSubstr("general.architecture is missing"));
  GgufBuilder unknown;
  unknown.string("general.architecture", "rwkv9");
  EXPECT_THAT(refusal(unknown), HasSubstr("model type 'rwkv9' isn't known; known are "));
  GgufBuilder missing;
  missing.string("general.architecture", "llama").u32("llama.embedding_length", 8);
  EXPECT_THAT(refusal(missing), HasSubstr("m.gguf: llama.attention.head_count is missing"));
  GgufBuilder wrong;
  wrong.string("general.architecture", "llama").string("llama.embedding_length", "8");
  EXPECT_THAT(refusal(wrong), HasSubstr("m.gguf: llama.embedding_length isn't an integer"));
  GgufBuilder zero;
  zero.string("general.architecture", "llama")
      .u32("llama.embedding_length", 8)
      .u32("llama.attention.head_count", 0);
  EXPECT_THAT(refusal(zero), HasSubstr("llama.attention.head_count: 0, wanted 1 to"));
}

TEST_F(GgufConfig, NumbersThatAreNoneAreRefusedWithTheirValue) {
  for (const char* name : {"llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"}) {
    for (const auto& [value, seen] : {std::pair{0.0f, ": 0.000000,"},
                                      {-1.0f, ": -1.000000,"},
                                      {INFINITY, ": inf,"},
                                      {NAN, ": nan,"}}) {
      EXPECT_THAT(refusal(small("llama").f32(name, value)), HasSubstr(std::string(name) + seen));
    }
  }
}

TEST_F(GgufConfig, CaseA1_ADeclaredHeadWidthWins) {
  EXPECT_EQ(spec_of(small("llama"))->layers[0].key_dim, 12);
  const auto declared = spec_of(small("llama").u32("llama.attention.key_length", 16));
  EXPECT_EQ(declared->layers[0].key_dim, 16);
  EXPECT_EQ(declared->layers[0].value_dim, 16) << "as wide as keys where nothing is said";
  EXPECT_EQ(spec_of(small("llama")
                        .u32("llama.attention.key_length", 16)
                        .u32("llama.attention.value_length", 32))
                ->layers[1]
                .value_dim,
            32);
  EXPECT_THAT(refusal(small("llama").u32("llama.attention.key_length", 0)),
              HasSubstr("llama.attention.key_length: 0"));
}

TEST_F(GgufConfig, CaseA2_AbsentKvHeadsAreAsManyAsQueryHeads) {
  EXPECT_EQ(spec_of(small("llama"))->layers[0].num_kv_heads, 4);
  EXPECT_EQ(spec_of(small("llama").u32("llama.attention.head_count_kv", 2))->layers[1].num_kv_heads,
            2);
  const auto by_layer =
      spec_of(small("llama").array<uint32_t>("llama.attention.head_count_kv", 4, {1, 4}));
  EXPECT_EQ(by_layer->layers[0].num_kv_heads, 1);
  EXPECT_EQ(by_layer->layers[1].num_kv_heads, 4);
  EXPECT_THAT(refusal(small("llama").u32("llama.attention.head_count_kv", 3)),
              HasSubstr("head_count_kv: 3, wanted a divisor of the 4"));
  EXPECT_THAT(
      refusal(small("llama").array<uint32_t>("llama.attention.head_count_kv", 4, {1, 2, 4})),
      HasSubstr("head_count_kv: 3 entries, wanted 2"));
}

TEST_F(GgufConfig, CaseA8_AWindowOfNothingIsNone) {
  for (const std::string architecture : {"phi3", "gemma2", "gemma3"}) {
    const std::string key = architecture + ".attention.sliding_window";
    for (const GgufBuilder& off :
         {small(architecture), small(architecture).u32(key, 0),
          small(architecture).key(key, 5, GgufBuilder::raw<int32_t>(-1))}) {
      const auto spec = spec_of(off);
      ASSERT_TRUE(spec.ok()) << spec.status().message();
      for (const LayerSpec& layer : spec->layers) EXPECT_EQ(layer.window, 0) << architecture;
    }
    EXPECT_EQ(spec_of(small(architecture).u32(key, 8))->layers[0].window, 8) << architecture;
    EXPECT_THAT(refusal(small(architecture).key(key, 5, GgufBuilder::raw<int32_t>(-2))),
                HasSubstr(key + ": -2"));
    EXPECT_THAT(refusal(small(architecture).string(key, "8")), HasSubstr(key));
  }
}

// A tiny model with another number of layers or width in its configuration.
class DamagedModel : public ::testing::Test {
 protected:
  std::string refusal(const std::string& what, const std::string& with) {
    namespace fs = std::filesystem;
    const fs::path source = fs::path(KVANT_TEST_DATA) / "models" / "llama-rope3";
    std::ifstream in(source / "config.json");
    std::string config((std::istreambuf_iterator<char>(in)), {});
    const size_t at = config.find(what);
    EXPECT_NE(at, std::string::npos);
    folder_.write("config.json", config.replace(at, what.size(), with));
    fs::copy(source / "model.safetensors", folder_.path(), fs::copy_options::overwrite_existing);
    auto opened = open_decoder(folder_.path(), {}, threads_);
    EXPECT_FALSE(opened.ok());
    return opened.status().message();
  }
  TempFolder folder_;
  ThreadPool threads_{1};
};

TEST_F(DamagedModel, ATensorThatNothingUsesIsNamed) {
  EXPECT_THAT(refusal(R"("num_hidden_layers": 3)", R"("num_hidden_layers": 2)"),
              HasSubstr("tensor 'model.layers.2."));
}

// Scales of a calibrated cache are never dropped without a word: those that have a known name are
// read, and a checkpoint with others is refused by the tensor's name.
TEST(OpenDecoder, CaseE2_AScaleIsReadOrNamed) {
  for (const char* name :
       {"model.layers.0.self_attn.k_scale", "model.layers.0.attn.k_scale",
        "model.layers.0.self_attn.k_proj.k_scale", "model.layers.0.self_attn.k_proj.output_scale",
        "model.layers.0.self_attn.qkv_proj.v_scale", "model.layers.0.self_attn.kv_scale",
        "language_model.model.layers.0.self_attn.v_scale", "model.layers.0.mystery_scale"}) {
    for (const std::vector<int>& shape : std::vector<std::vector<int>>{{}, {1}}) {
      RandomModel model({.layers = 1, .head_dim = 16});
      model.add(name, shape);
      model.write_weights("model.safetensors");
      ThreadPool threads(1);
      const auto opened = open_decoder(model.path(), {}, threads);
      if (belongs_to_cache(name)) {
        ASSERT_TRUE(opened.ok()) << opened.status().message();
        EXPECT_EQ(opened->decoder->info().cache_scales.layers.size(), 1u) << name;
      } else {
        EXPECT_EQ(opened.status().code(), Code::kUnsupported) << name;
        EXPECT_THAT(opened.status().message(), HasSubstr("tensor '" + std::string(name) + "'"));
      }
    }
  }
  EXPECT_FALSE(belongs_to_cache("model.layers.0.mystery_scale"));
}

TEST(OpenDecoder, AMissingPathIsNotFound) {
  ThreadPool threads(1);
  EXPECT_EQ(open_decoder("/nonexistent/model", {}, threads).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace kvant
