// Case D5: characters are never cut between tokens or chunks.
#include <gtest/gtest.h>

#include <map>

#include "model/tokenizer.h"

namespace kvant {
namespace {

// Every byte is the token of its value; 256 is special, 257 stands for two bytes of one character
// and one of the next.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, SpecialTokens) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string out;
    for (const int32_t id : ids) out += token_bytes(id, false);
    return out;
  }
  std::string token_bytes(int32_t id, bool) const override {
    if (id == 256) return "<end>";
    if (id == 257) return "\x98\x80\xc3";
    return std::string(1, static_cast<char>(id));
  }
  std::string_view piece(int32_t id) const override { return id >= 0 && id <= 257 ? "x" : ""; }
  bool is_special(int32_t id) const override { return id == 256; }
  int vocab_size() const override { return 258; }
  std::optional<int32_t> bos() const override { return std::nullopt; }
  std::optional<int32_t> eos() const override { return 256; }
  std::span<const int32_t> end_of_generation() const override { return {}; }
  std::string_view chat_template() const override { return {}; }
  std::string description() const override { return "bytes"; }
};

std::vector<std::string> push_all(StreamDecoder& stream, std::initializer_list<int> ids) {
  std::vector<std::string> out;
  for (const int id : ids) out.push_back(stream.push(id));
  return out;
}
using Texts = std::vector<std::string>;

TEST(StreamDecoder, CaseD5_FourTokensMakeOneEmoji) {
  const ByteTokenizer tokenizer;
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(push_all(stream, {0xf0, 0x9f, 0x98, 0x80}), (Texts{"", "", "", "😀"}));
  EXPECT_EQ(stream.flush(), "");
}

TEST(StreamDecoder, CaseD5_HalfACharacterAtTheEndIsOneMark) {
  const ByteTokenizer tokenizer;
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(push_all(stream, {'a', 0xe4, 0xb8}), (Texts{"a", "", ""}));
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(StreamDecoder, CaseD5_OverlongBytesAreMarksAtOnce) {
  const ByteTokenizer tokenizer;
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(push_all(stream, {0xc0, 0x80}), (Texts{"\uFFFD", "\uFFFD"}));
  EXPECT_EQ(stream.flush(), "");
}

TEST(StreamDecoder, CaseD5_SurrogatesAreMarks) {
  const ByteTokenizer tokenizer;
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(push_all(stream, {0xed, 0xa0, 0x80, 'z'}), (Texts{"", "\uFFFD\uFFFD", "\uFFFD", "z"}));
}

TEST(StreamDecoder, TokensThatStraddleCharactersHoldTheirRest) {
  const ByteTokenizer tokenizer;
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(push_all(stream, {0xf0, 0x9f, 257, 0xa9}), (Texts{"", "", "😀", "é"}));
}

TEST(StreamDecoder, SpecialTokensAreSkippedOnlyIfAsked) {
  const ByteTokenizer tokenizer;
  StreamDecoder skipping(tokenizer), showing(tokenizer, false);
  EXPECT_EQ(skipping.push(256), "");
  EXPECT_EQ(showing.push(256), "<end>");
  EXPECT_EQ(skipping.push(-1), "");
  EXPECT_EQ(skipping.push(100000), "");
}

}  // namespace
}  // namespace kvant
