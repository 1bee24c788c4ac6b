#include "files/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "files/gguf_types.h"
#include "gguf_builder.h"
#include "temp_file.h"

namespace kvant {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufBuilder small_model() {
  GgufBuilder b;
  b.string("general.architecture", "llama").u32("llama.block_count", 2).f32("eps", 0.5f);
  b.boolean("flag", true).strings("tokens", {"a", "", "ccc"});
  b.array<int32_t>("types", 5, {1, -2, 3}).array<float>("scores", 6, {0.5f, -1.0f});
  b.key("big", 10, GgufBuilder::raw<uint64_t>(~uint64_t{0}))
      .key("small", 1, GgufBuilder::raw<int8_t>(-7));
  b.tensor("w", 0, {4, 3}, std::string(48, 'w')).tensor("q", 2, {64, 2}, std::string(72, 'q'));
  return b;
}

class Gguf : public ::testing::Test {
 protected:
  Result<std::unique_ptr<GgufFile>> open(const std::string& bytes) {
    return GgufFile::open(folder_.write("model.gguf", bytes));
  }
  // The message of a file that must be refused as corrupt.
  std::string refusal(const std::string& bytes) {
    auto file = open(bytes);
    EXPECT_EQ(file.status().code(), Code::kCorrupt);
    EXPECT_THAT(file.status().message(), HasSubstr("model.gguf: "));
    return file.status().message();
  }
  TempFolder folder_;
  MemoryFile memory_;
};

TEST_F(Gguf, ReadsValuesOfEveryKind) {
  auto file = open(small_model().bytes());
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufFile& g = **file;
  EXPECT_EQ(g.version(), 3u);
  EXPECT_EQ(g.string("general.architecture"), "llama");
  EXPECT_EQ(g.integer("llama.block_count"), 2);
  EXPECT_EQ(g.integer("small"), -7);
  EXPECT_EQ(g.number("eps"), 0.5);
  EXPECT_EQ(g.number("llama.block_count"), 2.0);
  EXPECT_EQ(g.boolean("flag"), true);
  EXPECT_THAT(*g.strings("tokens"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*g.integers("types"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*g.numbers("scores"), ElementsAre(0.5, -1.0));
  EXPECT_EQ(g.keys().size(), 9u);
}

TEST_F(Gguf, GivesNothingForAbsentKeysOrOtherTypes) {
  auto file = open(small_model().bytes());
  ASSERT_TRUE(file.ok());
  const GgufFile& g = **file;
  EXPECT_FALSE(g.string("nothing"));
  EXPECT_FALSE(g.string("llama.block_count"));
  EXPECT_FALSE(g.integer("general.architecture"));
  EXPECT_FALSE(g.integer("eps"));
  EXPECT_FALSE(g.integer("flag"));
  EXPECT_FALSE(g.integer("big")) << "it doesn't fit into int64";
  EXPECT_FALSE(g.strings("types"));
  EXPECT_FALSE(g.integers("scores"));
  EXPECT_FALSE(g.integers("llama.block_count"));
}

TEST_F(Gguf, FindsTensorsAndTheirBytes) {
  auto file = open(small_model().bytes());
  ASSERT_TRUE(file.ok());
  const GgufTensor* q = (*file)->tensor("q");
  ASSERT_NE(q, nullptr);
  EXPECT_THAT(q->dims, ElementsAre(64, 2));
  EXPECT_EQ(q->data.size(), 72u);
  EXPECT_EQ(static_cast<char>(q->data[71]), 'q');
  EXPECT_EQ((*file)->tensor("nope"), nullptr);
}

TEST_F(Gguf, EveryTruncationIsCorrupt) {
  const std::string bytes = small_model().bytes();
  // The last tensor's data ends 24 bytes before the padded end.
  for (size_t size = 0; size < bytes.size() - 24; ++size) {
    auto file = GgufFile::open(memory_.write(bytes.substr(0, size)));
    ASSERT_EQ(file.status().code(), Code::kCorrupt) << "cut after " << size << " bytes";
  }
}

TEST_F(Gguf, BitFlipsNeverCrashAndKeepTensorsInside) {
  const std::string bytes = small_model().bytes();
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    auto file = GgufFile::open(memory_.write(flipped));
    if (!file.ok()) continue;
    for (std::string_view key : (*file)->keys()) {
      (void)(*file)->strings(key), (void)(*file)->numbers(key), (void)(*file)->string(key);
    }
    unsigned sum = 0;
    for (const GgufTensor& tensor : (*file)->tensors()) {
      for (std::byte b : tensor.data) sum += static_cast<unsigned>(b);
    }
    ASSERT_GE(sum, 0u);
  }
}

TEST_F(Gguf, RandomBytesAfterTheMagicAreRefused) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    std::string bytes = "GGUF" + GgufBuilder::raw<uint32_t>(3);
    for (int i = 0; i < 500; ++i) bytes += static_cast<char>(rng.below(256));
    ASSERT_EQ(GgufFile::open(memory_.write(bytes)).status().code(), Code::kCorrupt)
        << "seed " << seed;
  }
}

TEST_F(Gguf, LyingCountsAreNamed) {
  std::string bytes = small_model().bytes();
  std::string many_keys = bytes;
  many_keys.replace(16, 8, GgufBuilder::raw<uint64_t>(uint64_t{1} << 60));
  EXPECT_THAT(refusal(many_keys), HasSubstr("metadata count 1152921504606846976"));
  std::string many_tensors = bytes;
  many_tensors.replace(8, 8, GgufBuilder::raw<uint64_t>(uint64_t{1} << 40));
  EXPECT_THAT(refusal(many_tensors), HasSubstr("tensor count"));
  std::string huge_key = bytes;
  huge_key.replace(24, 8, GgufBuilder::raw<uint64_t>(uint64_t{1} << 32));
  EXPECT_THAT(refusal(huge_key), HasSubstr("key 0"));
}

TEST_F(Gguf, LyingArraysAreNamed) {
  GgufBuilder b;
  b.key("tokens", 9, GgufBuilder::raw<uint32_t>(4) + GgufBuilder::raw(uint64_t{1} << 62));
  EXPECT_THAT(refusal(b.bytes()), HasSubstr("key 'tokens': an array of 4611686018427387904"));
  GgufBuilder nested;
  nested.key("n", 9, GgufBuilder::raw<uint32_t>(9) + GgufBuilder::raw(uint64_t{0}));
  EXPECT_THAT(refusal(nested.bytes()), HasSubstr("unsupported array"));
}

TEST_F(Gguf, LyingTensorsAreNamed) {
  const std::string data(64, 'x');
  const auto one = [&](uint32_t type, const std::vector<uint64_t>& dims, uint64_t offset) {
    GgufBuilder b;
    b.tensor_at("t", type, dims, offset, data);
    return refusal(b.bytes());
  };
  EXPECT_THAT(one(0, {4, 5}, 0), HasSubstr("tensor 't': 80 bytes at offset 0 pass the end"));
  EXPECT_THAT(one(0, {4}, ~uint64_t{31}), HasSubstr("pass the end"));
  EXPECT_THAT(one(0, {4}, uint64_t{1} << 32), HasSubstr("offset 4294967296"));
  EXPECT_THAT(one(0, {4}, 4), HasSubstr("isn't a multiple of the alignment"));
  EXPECT_THAT(one(0, {uint64_t{1} << 62, 16}, 0), HasSubstr("passes 64 bits"));
  EXPECT_THAT(one(0, {0}, 0), HasSubstr("dimension 0 is 0"));
  EXPECT_THAT(one(0, {}, 0), HasSubstr("0 dimensions"));
  EXPECT_THAT(one(4, {32}, 0), HasSubstr("unknown type 4"));
  EXPECT_THAT(one(2, {33}, 0), HasSubstr("isn't a multiple of Q4_0's block of 32"));
}

TEST_F(Gguf, DuplicatesAndOverlapsAreNamed) {
  GgufBuilder keys;
  keys.u32("a", 1).u32("a", 2);
  EXPECT_THAT(refusal(keys.bytes()), HasSubstr("key 'a' is there twice"));
  GgufBuilder names;
  names.tensor("t", 0, {1}, "xxxx").tensor("t", 0, {1}, "xxxx");
  EXPECT_THAT(refusal(names.bytes()), HasSubstr("tensor 't' is there twice"));
  GgufBuilder overlap;
  overlap.tensor("a", 0, {16}, std::string(64, 'x')).tensor_at("b", 0, {8}, 32, "");
  EXPECT_THAT(refusal(overlap.bytes()), HasSubstr("tensors 'a' and 'b' overlap"));
}

TEST_F(Gguf, OtherVersionsAndFilesAreNamed) {
  EXPECT_THAT(refusal(small_model().bytes(1)), HasSubstr("version 1"));
  EXPECT_THAT(refusal(small_model().bytes(0x03000000)), HasSubstr("big-endian"));
  EXPECT_THAT(refusal("<html>"), HasSubstr("not a GGUF file"));
  EXPECT_EQ(GgufFile::open("/nonexistent/x.gguf").status().code(), Code::kNotFound);
  EXPECT_EQ(GgufFile::open(folder_.path()).status().code(), Code::kInvalidArgument);
}

TEST_F(Gguf, AlignmentComesFromTheFile) {
  GgufBuilder b;
  b.u32("general.alignment", 48).tensor("t", 0, {1}, "xxxx");
  EXPECT_THAT(refusal(b.bytes()), HasSubstr("general.alignment: 48"));
}

TEST_F(Gguf, StrangeNamesArePrintable) {
  GgufBuilder b;
  b.key("\x01\xff" + std::string(300, 'k'), 77, "");
  EXPECT_THAT(refusal(b.bytes()), HasSubstr("'\\x01\\xffkkk"));
}

}  // namespace
}  // namespace kvant
