// Directories that are wrong in one place: one sentence that names the file and the field.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/rng.h"
#include "goldens.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

class TokenizerFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("kvant_tokenizer_") +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  Status load_with(const std::string& tokenizer) {
    write("tokenizer.json", tokenizer);
    return Tokenizer::load(folder_).status();
  }
  fs::path folder_;
};

struct Wrong {
  std::string tokenizer;
  Code code;
  std::string field;   // the message names it
  std::string reason;  // and says this
};

const char kModel[] = R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]})";
std::string with(const std::string& more) {
  return std::string("{") + kModel + (more.empty() ? "" : "," + more) + "}";
}
std::string model(const std::string& text) { return R"({"model":)" + text + "}"; }

TEST_F(TokenizerFiles, TheGoodOneLoads) {
  const Status status = load_with(with(""));
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(TokenizerFiles, OneSentenceNamesFileAndField) {
  const Wrong wrongs[] = {
      {"", Code::kCorrupt, "", "not JSON"},
      {"{\"model\":", Code::kCorrupt, "", "not JSON"},
      {"[]", Code::kCorrupt, "", "not a JSON object"},
      {"{}", Code::kCorrupt, "model", "is missing"},
      {model("3"), Code::kCorrupt, "model", "is missing"},
      {model(R"({"type":"WordPiece"})"), Code::kUnsupported, "model.type", "'WordPiece'"},
      {model(R"({"type":7})"), Code::kCorrupt, "model.type", "an integer"},
      {model(R"({"type":"BPE","merges":[]})"), Code::kCorrupt, "model.vocab", "wanted an object"},
      {model(R"({"type":"BPE","vocab":{"a":-1},"merges":[]})"), Code::kCorrupt, "model.vocab",
       "'a'"},
      {model(R"({"type":"BPE","vocab":{"a":99999999999},"merges":[]})"), Code::kCorrupt,
       "model.vocab", "'a'"},
      {model(R"({"type":"BPE","vocab":{"a":"0"},"merges":[]})"), Code::kCorrupt, "model.vocab",
       "'a'"},
      {model(R"({"type":"BPE","vocab":{"a":0,"b":0},"merges":[]})"), Code::kCorrupt, "model.vocab",
       "same id 0"},
      {model(R"({"type":"BPE","vocab":{"a":0},"merges":["a c"]})"), Code::kCorrupt, "model.merges",
       "'c'"},
      {model(R"({"type":"BPE","vocab":{"a":0},"merges":["a a"]})"), Code::kCorrupt, "model.merges",
       "'aa'"},
      {model(R"({"type":"BPE","vocab":{"a":0},"merges":["aa"]})"), Code::kCorrupt, "model.merges",
       "entry 0"},
      {model(R"({"type":"BPE","vocab":{"a":0},"merges":[["a"]]})"), Code::kCorrupt, "model.merges",
       "entry 0"},
      {model(R"({"type":"BPE","vocab":{"a":0}})"), Code::kCorrupt, "model.merges", "nothing"},
      {model(R"({"type":"Unigram","vocab":[]})"), Code::kCorrupt, "model.vocab", "no token"},
      {model(R"({"type":"Unigram","vocab":[["a"]]})"), Code::kCorrupt, "model.vocab", "entry 0"},
      {model(R"({"type":"Unigram","vocab":[["a",0]],"unk_id":5})"), Code::kCorrupt, "model.unk_id",
       "found 5"},
      {with(R"("added_tokens":3)"), Code::kCorrupt, "added_tokens", "wanted an array"},
      {with(R"("added_tokens":[{"id":9}])"), Code::kCorrupt, "added_tokens[0].content", "nothing"},
      {with(R"("added_tokens":[{"id":-9,"content":"x"}])"), Code::kCorrupt, "added_tokens[0].id",
       "found -9"},
      {with(R"("added_tokens":[{"id":1,"content":"x"}])"), Code::kCorrupt, "added_tokens[0].id",
       "taken by 'b'"},
      {with(R"("added_tokens":[{"id":9,"content":"x","special":1}])"), Code::kCorrupt,
       "added_tokens[0].special", "true or false"},
      {with(R"("normalizer":{"type":"Precompiled"})"), Code::kUnsupported, "normalizer",
       "'Precompiled'"},
      {with(R"("normalizer":{"type":"Replace","pattern":{"Regex":"(a"},"content":""})"),
       Code::kCorrupt, "normalizer.pattern.Regex", "regular expression"},
      {with(
           R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Prepend"}]})"),
       Code::kCorrupt, "normalizer.normalizers[1].prepend", "nothing"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"String":"x"},"behavior":"Sideways"})"),
       Code::kCorrupt, "pre_tokenizer.behavior", "'Sideways'"},
      {with(R"("pre_tokenizer":{"type":"UnicodeScripts"})"), Code::kUnsupported, "pre_tokenizer",
       "'UnicodeScripts'"},
      {with(
           R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})"),
       Code::kUnsupported, "pre_tokenizer.pretokenizers[1]", "ByteLevel"},
      {with(R"("decoder":{"type":"Strip","content":"","start":1})"), Code::kCorrupt,
       "decoder.content", "empty"},
      {with(R"("decoder":{"type":"Strip","content":" ","start":-1})"), Code::kCorrupt,
       "decoder.start", "found -1"},
      {with(R"("decoder":{"type":"CTC"})"), Code::kUnsupported, "decoder", "'CTC'"},
      {with(
           R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}}],"special_tokens":{}})"),
       Code::kCorrupt, "post_processor.single[0]", "'<s>'"},
      {with(
           R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"s"}}],"special_tokens":{"s":{"ids":[77]}}})"),
       Code::kCorrupt, "ids[0]", "found 77"},
  };
  for (const Wrong& wrong : wrongs) {
    const Status status = load_with(wrong.tokenizer);
    ASSERT_FALSE(status.ok()) << wrong.tokenizer;
    EXPECT_EQ(status.code(), wrong.code) << status.message();
    EXPECT_NE(status.message().find("tokenizer.json"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(wrong.field), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(wrong.reason), std::string::npos) << status.message();
  }
}

std::string repeated(const std::string& part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += (i == 0 ? "" : ",") + part;
  return out;
}

// Steps piled up would let a small file ask for any time and memory to encode one word.
TEST_F(TokenizerFiles, CaseH1_PiledUpStepsAreRefused) {
  const std::string grow = R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaa"})";
  const std::string any =
      R"({"type":"Replace","pattern":{"Regex":"x*"},"content":")" + std::string(600, 'x') + R"("})";
  const std::string mark = R"({"type":"Metaspace","replacement":"_","prepend_scheme":"always"})";
  const Wrong wrongs[] = {
      {with(R"("normalizer":{"type":"Sequence","normalizers":[)" + repeated(grow, 5) + "]}"),
       Code::kUnsupported, "normalizer", "1024 times longer"},
      {with(R"("normalizer":)" + any), Code::kUnsupported, "normalizer", "1201 times longer"},
      {with(R"("normalizer":{"type":"Sequence","normalizers":[)" + repeated(grow, 4) +
            R"(]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" + repeated(mark, 2) +
            "]}"),
       Code::kUnsupported, "pre_tokenizer", "1024 times longer"},
      {with(R"("decoder":{"type":"Sequence","decoders":[)" + repeated(grow, 5) + "]}"),
       Code::kUnsupported, "decoder", "1024 times longer"},
      {with(R"("decoder":{"type":"Sequence","decoders":[)" + repeated(R"({"type":"Fuse"})", 65) +
            "]}"),
       Code::kUnsupported, "decoder", "65 steps"},
      {with(R"("added_tokens":[{"id":3,"content":")" + std::string(4097, 'x') + R"("}])"),
       Code::kCorrupt, "added_tokens[0].content", "4097 bytes"},
  };
  for (const Wrong& wrong : wrongs) {
    const Status status = load_with(wrong.tokenizer);
    ASSERT_FALSE(status.ok()) << wrong.field << " " << wrong.reason;
    EXPECT_EQ(status.code(), wrong.code) << status.message();
    EXPECT_NE(status.message().find(wrong.field), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(wrong.reason), std::string::npos) << status.message();
  }
  const Status status = load_with(
      with(R"("normalizer":{"type":"Sequence","normalizers":[)" + repeated(grow, 4) + "]}"));
  EXPECT_TRUE(status.ok()) << status.message();
}

// Readers recurse into sequences: as deep as simdjson lets a document go.
TEST_F(TokenizerFiles, CaseH1_DeepSequencesEnd) {
  const std::string open = R"({"type":"Sequence","normalizers":[)", close = "]}";
  for (const int depth : {10, 500, 100000}) {
    std::string normalizer;
    for (int i = 0; i < depth; ++i) normalizer += open;
    for (int i = 0; i < depth; ++i) normalizer += close;
    EXPECT_EQ(load_with(with(R"("normalizer":)" + normalizer)).ok(), depth <= 500) << depth;
  }
}

TEST_F(TokenizerFiles, CaseH1_WhiteSpaceAroundTokensOfWhiteSpaceIsReadOnce) {
  write("tokenizer.json",
        with(R"("added_tokens":[{"id":3,"content":" ","lstrip":true,"rstrip":true}])"));
  const auto loaded = Tokenizer::load(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  // A tenth of a second; an hour if each token looked at all of it.
  const std::vector<int32_t> ids =
      (*loaded)->encode("a" + std::string(1'000'000, ' ') + "b", SpecialTokens::kNone);
  EXPECT_EQ(ids.size(), 1'000'002u) << "the first takes all, the others none";
}

TEST_F(TokenizerFiles, MissingFileIsNotFound) {
  const Status status = Tokenizer::load(folder_).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find("tokenizer.json"), std::string::npos) << status.message();
}

TEST_F(TokenizerFiles, WrongConfigurationIsNamed) {
  write("tokenizer_config.json", R"({"bos_token": 5})");
  const Status status = load_with(with(""));
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(status.message().find("tokenizer_config.json: bos_token"), std::string::npos)
      << status.message();
}

TEST_F(TokenizerFiles, ConfigurationNamesSpecialTokensAndTemplate) {
  write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "a"}, "eos_token": "b", "add_bos_token": true, "chat_template": "{{ 1 }}"})");
  write("generation_config.json", R"({"eos_token_id": [2, 1]})");
  write("tokenizer.json", with(""));
  const auto loaded = Tokenizer::load(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Tokenizer& tokenizer = **loaded;
  EXPECT_EQ(tokenizer.bos(), 0);
  EXPECT_EQ(tokenizer.eos(), 1);
  EXPECT_EQ(std::vector<int32_t>(tokenizer.end_of_generation().begin(),
                                 tokenizer.end_of_generation().end()),
            (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(tokenizer.chat_template(), "{{ 1 }}");
  EXPECT_EQ(tokenizer.encode("ab", SpecialTokens::kAdd), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(tokenizer.encode("ab", SpecialTokens::kNone), (std::vector<int32_t>{2}));
}

// Transformers writes "no limit" as 10^30 in full; a string of digits stays one.
TEST_F(TokenizerFiles, IntegersOfAnyLengthAreRead) {
  write("tokenizer_config.json",
        R"({"model_max_length": 1000000000000000019884624838656, "eos_token": "b",
            "chat_template": "\"1000000000000000019884624838656"})");
  write("tokenizer.json", with(""));
  const auto loaded = Tokenizer::load(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ((*loaded)->eos(), 1);
  EXPECT_EQ((*loaded)->chat_template(), "\"1000000000000000019884624838656");
}

TEST_F(TokenizerFiles, TemplateFileWinsOverConfiguration) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "old"}]})");
  write("tokenizer.json", with(""));
  EXPECT_EQ((*Tokenizer::load(folder_))->chat_template(), "old");
  write("chat_template.jinja", "new");
  EXPECT_EQ((*Tokenizer::load(folder_))->chat_template(), "new");
}

// Whatever a flipped byte turns the file into, loading ends, and what loads can encode and decode.
TEST_F(TokenizerFiles, FlippedBytesNeverCrash) {
  for (const char* name : {"qwen2", "unigram", "flags"}) {
    const std::string good = test::read_bytes(test::tokenizer_data() / name / "tokenizer.json");
    Rng rng(11);
    for (int round = 0; round < 60; ++round) {
      std::string bad = good;
      for (int flips = 0; flips < 3; ++flips)
        bad[rng.below(bad.size())] = static_cast<char>(rng.below(256));
      if (round % 4 == 0) bad.resize(rng.below(bad.size()));
      write("tokenizer.json", bad);
      const auto loaded = Tokenizer::load(folder_);
      if (!loaded.ok()) continue;
      const std::vector<int32_t> ids =
          (*loaded)->encode("Hello wörld 123 <|endoftext|>", SpecialTokens::kAdd);
      (void)(*loaded)->decode(ids, false);
    }
  }
}

}  // namespace
}  // namespace kvant
