// The beginning of a text, read alone, has the ids that the whole text begins with: for every
// family of tokenizers, wherever the text is cut.
#include "cli/text_input.h"

#include <gtest/gtest.h>

#include <sstream>

#include "files/gguf.h"
#include "model/tokenizer/goldens.h"
#include "run_program.h"

namespace kvant::cli {
namespace {

TEST(SafeCut, IsBehindALineBreakOrBeforeABlankThatStandsAlone) {
  EXPECT_EQ(safe_cut("one two\nthree fo"), 8u);
  EXPECT_EQ(safe_cut("one two th"), 7u);
  EXPECT_EQ(safe_cut("one two "), 3u) << "what follows the last blank isn't known";
  EXPECT_EQ(safe_cut("one two\n"), 3u);
  EXPECT_EQ(safe_cut("one  two\n\nthree"), 0u) << "runs";
  EXPECT_EQ(safe_cut("one\r\ntwo"), 0u);
  EXPECT_EQ(safe_cut("one \xe3\x80\x80two"), 0u) << "an ideographic space beside";
  EXPECT_EQ(safe_cut("\xe4\xb8\x96\n\xe7\x95\x8c"), 4u);
  EXPECT_EQ(safe_cut("\xe4\xb8\x96\n\xe7\x95"), 0u) << "a character that isn't whole";
  EXPECT_EQ(safe_cut("word"), 0u);
  EXPECT_EQ(safe_cut(" word"), 0u);
  EXPECT_EQ(safe_cut(""), 0u);
}

struct Case {
  std::string name;
  std::string gguf;  // empty: tests/data/tokenizers/NAME
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class FirstIds : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().gguf.empty()) {
      tokenizer_ = *Tokenizer::load(test::tokenizer_data() / GetParam().name);
      return;
    }
    const std::filesystem::path path = test::model_file(GetParam().gguf);
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " isn't there";
    file_ = *GgufFile::open(path);
    tokenizer_ = *Tokenizer::load(*file_);
  }

  std::vector<int32_t> first_ids(const std::string& text, int64_t count) {
    Settings settings;
    settings.text_file = write_file("text", text);
    settings.given.insert("text");
    Result<TextInput> input = TextInput::open(settings);
    EXPECT_TRUE(input.ok());
    const auto ids = input->first_ids(*tokenizer_, count);
    EXPECT_TRUE(ids.ok()) << ids.status().message();
    return *ids;
  }

  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// Twelve languages, code, emoji, special tokens spelled out, invalid UTF-8, odd white space.
std::string everything(const std::string& between) {
  std::string text;
  for (const std::string& one : test::read_escaped_lines(test::tokenizer_data() / "strings.txt"))
    text += one + between;
  return text;
}

std::vector<std::string> texts() {
  const std::string novel =
      slurp(KVANT_TEST_DATA "/../../data/wikitext2-test.txt").substr(0, 60000);
  std::string crlf, one_line = novel;
  for (const char c : novel) crlf += c == '\n' ? "\r\n" : std::string(1, c);
  std::replace(one_line.begin(), one_line.end(), '\n', ' ');
  return {novel, one_line, crlf, everything("\n"), everything(" "), everything("")};
}

bool begins_with(std::span<const int32_t> ids, std::span<const int32_t> first) {
  return first.size() <= ids.size() && std::equal(first.begin(), first.end(), ids.begin());
}

// Cuts all over the texts. That cutting anywhere does change ids is seen too, or this would show
// nothing.
TEST_P(FirstIds, DoNotDependOnWhatFollowsASafeCut) {
  int safe = 0, changed_by_any_cut = 0;
  for (const std::string& whole_text : texts()) {
    for (const size_t start : {size_t{0}, whole_text.size() / 3, whole_text.size() / 2}) {
      const std::string_view text = std::string_view(whole_text).substr(start, 12000);
      const std::vector<int32_t> whole = tokenizer_->encode(text, SpecialTokens::kAdd),
                                 plain = tokenizer_->encode(text, SpecialTokens::kNone);
      for (size_t end = 300; end < text.size(); end += 331) {
        const std::string_view part = text.substr(0, end), kept = part.substr(0, safe_cut(part));
        const std::vector<int32_t> any = tokenizer_->encode(part, SpecialTokens::kNone);
        const std::vector<int32_t> ids = tokenizer_->encode(kept, SpecialTokens::kAdd);
        if (!begins_with(plain, any)) ++changed_by_any_cut;
        if (ids.size() <= kDistrustedIds) continue;
        ++safe;
        EXPECT_TRUE(begins_with(whole, std::span(ids).first(ids.size() - kDistrustedIds)))
            << "cut before " << text.substr(kept.size(), 40);
      }
    }
  }
  EXPECT_GT(safe, 300);
  EXPECT_GT(changed_by_any_cut, 20);
}

TEST_P(FirstIds, AreThoseOfTheWholeText) {
  for (const std::string& text : texts()) {
    const std::vector<int32_t> whole = tokenizer_->encode(text, SpecialTokens::kAdd);
    for (const int64_t count : {1, 65, 777, 5000, 1 << 20}) {
      std::vector<int32_t> wanted = whole;
      wanted.resize(std::min(whole.size(), static_cast<size_t>(count)));
      EXPECT_EQ(first_ids(text, count), wanted) << count << " of " << text.substr(0, 40);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, FirstIds,
                         testing::Values(Case{"gpt2", ""}, Case{"llama3", ""}, Case{"qwen2", ""},
                                         Case{"deepseek", ""}, Case{"llama2", ""},
                                         Case{"mistral", ""}, Case{"gemma", ""},
                                         Case{"unigram", ""}, Case{"flags", ""},
                                         Case{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
                                         Case{"gemma3", "gemma-3-270m-q4_k_m.gguf"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvant::cli
