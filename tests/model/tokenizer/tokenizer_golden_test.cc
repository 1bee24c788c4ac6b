// Ids and texts equal to those of the `tokenizers` library, for every family, on 1,400 strings.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>

#include "files/gguf.h"
#include "goldens.h"
#include "model/tokenizer.h"
#include "model/tokenizer/unicode.h"

namespace kvant {
namespace {

struct Case {
  std::string name;
  std::string gguf;  // empty: tests/data/tokenizers/NAME/tokenizer.json
  bool byte_level;   // decode(encode(x)) is x
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kCases[] = {
    {"gpt2", "", true},
    {"llama3", "", true},
    {"qwen2", "", false},  // NFC changes some texts
    {"deepseek", "", true},
    {"llama2", "", false},
    {"mistral", "", false},
    {"gemma", "", false},
    {"unigram", "", false},
    {"flags", "", false},
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", true},
    {"gemma3", "gemma-3-270m-q4_k_m.gguf", false},
};

class TokenizerGolden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    if (c.gguf.empty()) {
      take(Tokenizer::load(test::tokenizer_data() / c.name));
      return;
    }
    const std::filesystem::path path = test::model_file(c.gguf);
    if (!std::filesystem::exists(path))
      GTEST_SKIP() << path << " is not there (tools/setup.sh models)";
    Result<std::unique_ptr<GgufFile>> gguf = GgufFile::open(path);
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    file_ = std::move(gguf).value();
    take(Tokenizer::load(*file_));
  }
  void take(Result<std::unique_ptr<Tokenizer>> loaded) {
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(loaded).value();
  }
  std::vector<std::string> strings() {
    return test::read_escaped_lines(test::tokenizer_data() / "strings.txt");
  }
  std::vector<std::vector<int32_t>> lists(const std::string& extension) {
    return test::read_id_lists(test::tokenizer_data() / (GetParam().name + extension));
  }

  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerGolden, EncodesAsTheReference) {
  const std::vector<std::string> texts = strings();
  const std::vector<std::vector<int32_t>> ids = lists(".ids");
  ASSERT_GE(texts.size(), 1000u);
  ASSERT_GT(ids.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer_->encode(texts[i], SpecialTokens::kNone), ids[i])
        << "text " << i << ": " << texts[i];
  }
}

TEST_P(TokenizerGolden, AddsSpecialTokensAsTheReference) {
  const std::vector<std::string> texts = strings();
  const std::vector<std::vector<int32_t>> ids = lists(".ids");
  for (size_t i = texts.size(); i < ids.size(); ++i) {
    EXPECT_EQ(tokenizer_->encode(texts[i - texts.size()], SpecialTokens::kAdd), ids[i])
        << texts[i - texts.size()];
  }
}

TEST_P(TokenizerGolden, DecodesAsTheReference) {
  const std::vector<std::vector<int32_t>> ids = lists(".decode");
  const std::vector<std::string> texts =
      test::read_escaped_lines(test::tokenizer_data() / (GetParam().name + ".decode.txt"));
  ASSERT_EQ(texts.size(), ids.size() * 2);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(tokenizer_->decode(ids[i], false), texts[2 * i]) << "list " << i;
    EXPECT_EQ(tokenizer_->decode(ids[i], true), texts[2 * i + 1]) << "list " << i;
  }
}

TEST_P(TokenizerGolden, ByteLevelTextComesBack) {
  if (!GetParam().byte_level) GTEST_SKIP() << "its normalizer changes text, or it is SentencePiece";
  // SmolLM2's vocabulary lacks some control bytes; the reference leaves them out, too.
  std::array<bool, 256> has_byte{};
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string bytes = tokenizer_->token_bytes(id, false);
    if (bytes.size() == 1) has_byte[static_cast<unsigned char>(bytes[0])] = true;
  }
  for (const std::string& text : strings()) {
    const std::string repaired = tokenizer::repair_utf8(text);
    if (!std::all_of(repaired.begin(), repaired.end(),
                     [&](char c) { return has_byte[static_cast<unsigned char>(c)]; })) {
      continue;
    }
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, SpecialTokens::kNone), false), repaired);
  }
}

TEST_P(TokenizerGolden, StreamGivesWhatDecodeGives) {
  for (const std::string& text : strings()) {
    const std::vector<int32_t> ids = tokenizer_->encode(text, SpecialTokens::kNone);
    StreamDecoder stream(*tokenizer_);
    std::string streamed;
    for (const int32_t id : ids) {
      streamed += stream.push(id);
      ASSERT_TRUE(tokenizer::is_valid_utf8(streamed)) << text;
    }
    streamed += stream.flush();
    EXPECT_EQ(streamed, tokenizer_->decode(ids, true)) << text;
  }
}

// A word cache that is cold, warm, or absent (another thread holds it) must not change an id.
TEST_P(TokenizerGolden, CacheChangesNothing) {
  const std::vector<std::string> texts = strings();
  std::vector<std::vector<int32_t>> cold;
  for (const std::string& text : texts)
    cold.push_back(tokenizer_->encode(text, SpecialTokens::kNone));
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(tokenizer_->encode(texts[i], SpecialTokens::kNone), cold[i]) << texts[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGolden, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace kvant
