#include "files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gguf_builder.h"
#include "temp_file.h"

namespace kvant {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  return GgufBuilder::raw<uint64_t>(header.size()) + header + data;
}

const std::string kHeader = R"({"__metadata__":{"format":"pt"},)"
                            R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]},)"
                            R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string refusal(const std::string& bytes) {
    auto file = Safetensors::open_file(folder_.write("m.safetensors", bytes));
    EXPECT_EQ(file.status().code(), Code::kCorrupt);
    EXPECT_THAT(file.status().message(), HasSubstr("m.safetensors: "));
    return file.status().message();
  }
  // The refusal of one tensor `t` over eight bytes of data.
  std::string entry_refusal(const std::string& entry) {
    return refusal(file_of("{\"t\":" + entry + "}", "12345678"));
  }
  TempFolder folder_;
  MemoryFile memory_;
};

TEST_F(SafetensorsTest, ReadsTensorsInDataOrder) {
  auto file = Safetensors::open_file(folder_.write("m", file_of(kHeader, std::string(28, 'x'))));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ((*file)->tensors().size(), 2u);
  EXPECT_EQ((*file)->tensors()[0].name, "a");
  const SafetensorsTensor* b = (*file)->tensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, "BF16");
  EXPECT_THAT(b->shape, ElementsAre(2, 3));
  EXPECT_EQ(b->data.size(), 12u);
  EXPECT_EQ((*file)->tensor("c"), nullptr);
}

TEST_F(SafetensorsTest, EveryTruncationIsCorrupt) {
  const std::string bytes = file_of(kHeader, std::string(28, 'x'));
  for (size_t size = 0; size < bytes.size(); ++size) {
    auto file = Safetensors::open_file(memory_.write(bytes.substr(0, size)));
    ASSERT_EQ(file.status().code(), Code::kCorrupt) << "cut after " << size << " bytes";
  }
}

TEST_F(SafetensorsTest, BitFlipsNeverCrash) {
  const std::string bytes = file_of(kHeader, std::string(28, 'x'));
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    auto file = Safetensors::open_file(memory_.write(flipped));
    if (!file.ok()) continue;
    for (const SafetensorsTensor& tensor : (*file)->tensors()) {
      for (std::byte b : tensor.data) ASSERT_NE(b, std::byte{0});
    }
  }
}

TEST_F(SafetensorsTest, LyingHeaderLengthsAreNamed) {
  for (uint64_t length : {uint64_t{1} << 32, ~uint64_t{0}, uint64_t{1} << 63}) {
    EXPECT_THAT(refusal(GgufBuilder::raw(length) + "{}"),
                HasSubstr("header length " + std::to_string(length)));
  }
}

TEST_F(SafetensorsTest, LyingEntriesAreNamed) {
  EXPECT_THAT(entry_refusal(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"),
              HasSubstr("tensor 't': data_offsets isn't a pair of non-negative integers"));
  EXPECT_THAT(entry_refusal(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
              HasSubstr("leave"));
  EXPECT_THAT(entry_refusal(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4294967304]})"),
              HasSubstr("leave the file's 8 bytes"));
  EXPECT_THAT(entry_refusal(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
              HasSubstr("don't hold the 12 bytes"));
  EXPECT_THAT(
      entry_refusal(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
      HasSubstr("64 bits"));
  EXPECT_THAT(entry_refusal(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
              HasSubstr("non-negative"));
  EXPECT_THAT(entry_refusal(R"({"dtype":"Q9","shape":[2],"data_offsets":[0,8]})"),
              HasSubstr("unknown dtype 'Q9'"));
  EXPECT_THAT(entry_refusal(R"({"dtype":"F32","data_offsets":[0,8]})"), HasSubstr("shape"));
  EXPECT_THAT(entry_refusal("[]"), HasSubstr("shape"));
}

TEST_F(SafetensorsTest, OverlapsHolesAndDuplicatesAreNamed) {
  const auto two = [&](const char* second, const char* offsets) {
    return refusal(
        file_of(std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},")") + second +
                    R"(":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets + "}}",
                "12345678"));
  };
  EXPECT_THAT(two("b", "[2,6]"), HasSubstr("tensor 'b': overlaps"));
  EXPECT_THAT(two("b", "[0,4]"), HasSubstr("overlaps"));
  EXPECT_THAT(two("a", "[4,8]"), HasSubstr("tensor 'a' is already in"));
  EXPECT_THAT(entry_refusal(R"({"dtype":"U8","shape":[4],"data_offsets":[4,8]})"),
              HasSubstr("a hole"));
  EXPECT_THAT(entry_refusal(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})"),
              HasSubstr("4 bytes at its end belong to no tensor"));
}

TEST_F(SafetensorsTest, DeepHeadersAreRefused) {
  EXPECT_THAT(refusal(file_of("{\"a\":" + std::string(100000, '['), "")), HasSubstr("header"));
}

class Shards : public SafetensorsTest {
 protected:
  Shards() {
    folder_.write("1.safetensors",
                  file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "aaaa"));
    folder_.write("2.safetensors",
                  file_of(R"({"b":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})", "bbbb"));
  }
  Result<std::unique_ptr<Safetensors>> open(const std::string& weight_map) {
    folder_.write("model.safetensors.index.json", "{\"weight_map\":" + weight_map + "}");
    return Safetensors::open_directory(folder_.path());
  }
};

TEST_F(Shards, AreReadTogether) {
  auto all = open(R"({"a":"1.safetensors","b":"2.safetensors"})");
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ((*all)->tensors().size(), 2u);
  EXPECT_EQ((*all)->path_of(*(*all)->tensor("b")).filename(), "2.safetensors");
}

TEST_F(Shards, AMissingShardIsNamed) {
  auto all = open(R"({"a":"1.safetensors","b":"3.safetensors"})");
  EXPECT_EQ(all.status().code(), Code::kNotFound);
  EXPECT_THAT(all.status().message(), HasSubstr("3.safetensors"));
}

TEST_F(Shards, ATensorInAnotherShardIsNamed) {
  auto all = open(R"({"a":"2.safetensors","b":"2.safetensors"})");
  EXPECT_EQ(all.status().code(), Code::kCorrupt);
  EXPECT_THAT(all.status().message(), HasSubstr("tensor 'a' isn't in 2.safetensors"));
}

TEST_F(Shards, AShardOutsideTheFolderIsRefused) {
  EXPECT_THAT(open(R"({"a":"../1.safetensors"})").status().message(), HasSubstr("plain file name"));
  EXPECT_THAT(open(R"({"a":7})").status().message(), HasSubstr("wanted a string"));
  EXPECT_THAT(open("[]").status().message(), HasSubstr("weight_map"));
}

}  // namespace
}  // namespace kvant
