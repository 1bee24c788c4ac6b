// Prompts of exact lengths, and requests that a seed determines.
#include "load/workload.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "load/server.h"
#include "model/tokenizer.h"

namespace kvant::load {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::json;

// BOS and words apart by blanks, those of `doubles` being two tokens; or one token per byte.
class FakeCounter final : public TokenCounter {
 public:
  explicit FakeCounter(std::set<std::string> doubles) : doubles_(std::move(doubles)) {}
  Result<int64_t> count(const std::string& prompt) override {
    ++calls;
    int64_t tokens = 1;
    for (size_t at = 0; at <= prompt.size();) {
      const size_t end = std::min(prompt.find(' ', at), prompt.size());
      tokens += doubles_.contains(prompt.substr(at, end - at)) ? 2 : 1;
      at = end + 1;
    }
    return tokens;
  }
  std::string name() const override { return "a fake"; }
  int calls = 0;

 private:
  std::set<std::string> doubles_;
};

class ByteCounter final : public TokenCounter {
 public:
  Result<int64_t> count(const std::string& prompt) override {
    return static_cast<int64_t>(prompt.size()) + 1;
  }
  std::string name() const override { return "bytes"; }
};

// Merges across words: nothing adds up.
class HalfCounter final : public TokenCounter {
 public:
  Result<int64_t> count(const std::string& prompt) override {
    return static_cast<int64_t>(prompt.size() / 7);
  }
  std::string name() const override { return "halves"; }
};

TEST(PromptWords, WordsOfTwoTokensAreSortedOutInFewQuestions) {
  FakeCounter counter({"time", "happy", "history"});
  const PromptWords words = *PromptWords::find(counter);
  EXPECT_EQ(words.words().size(), common_words().size() - 3);
  EXPECT_LT(counter.calls, 70);
  for (int64_t tokens : {2, 3, 17, 512, 4096}) {
    const std::string text = words.text(tokens, 0, 1, 2);
    EXPECT_EQ(*counter.count(text), tokens);
    EXPECT_EQ(text.find(" happy"), text.npos);
  }
  EXPECT_EQ(words.fewest_tokens(), 2);
}

TEST(PromptWords, WhereNoWordIsOneTokenLettersAre) {
  ByteCounter counter;
  const PromptWords words = *PromptWords::find(counter);
  EXPECT_EQ(words.words().size(), 26u);
  for (int64_t tokens : {3, 4, 100}) EXPECT_EQ(*counter.count(words.text(tokens, 0, 1, 2)), tokens);
}

TEST(PromptWords, WhatDoesntAddUpIsRefusedInOneSentence) {
  HalfCounter counter;
  const Status status = PromptWords::find(counter).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("prompts of an exact length can't be made"));
}

TEST(PromptWords, CommonWordsAreThereOnce) {
  const std::set<std::string_view> all(common_words().begin(), common_words().end());
  EXPECT_EQ(all.size(), common_words().size());
  EXPECT_GT(all.size(), 300u);
}

TEST(PromptWords, EveryTokenizerOfTheTestsGivesExactLengths) {
  for (const char* name : {"gpt2", "llama2", "llama3", "deepseek", "mistral"}) {
    const std::string path = std::string(KVANT_TEST_DATA "/tokenizers/") + name;
    auto tokenizer = Tokenizer::load(std::filesystem::path(path));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    const auto counter = tokenizer_counter(**tokenizer, path, Api::kCompletions);
    const Result<PromptWords> words = PromptWords::find(*counter);
    ASSERT_TRUE(words.ok()) << name << ": " << words.status().message();
    for (int64_t tokens : {64, 500})
      EXPECT_EQ(*counter->count(words->text(tokens, tokens / 2, 1, 2)), tokens) << name;
  }
}

TEST(PromptFile, PromptsMessagesAndLengths) {
  const auto prompts = *parse_prompts(
      "{\"prompt\": \"a\"}\n\n  \r\n{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}], "
      "\"max_tokens\": 5}",
      "file", Messages::kAllowed);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].prompt, "a");
  EXPECT_EQ(json::parse(prompts[1].messages)[0]["content"].get<std::string>(), "b");
  EXPECT_EQ(prompts[1].max_tokens, 5);
}

TEST(PromptFile, OneSentenceWithTheLineForEveryBadOne) {
  const auto said = [](std::string_view text, Messages messages = Messages::kAllowed) {
    return parse_prompts(text, "p.jsonl", messages).status().message();
  };
  EXPECT_THAT(said(""), HasSubstr("p.jsonl has no prompts"));
  EXPECT_THAT(said("\n \n"), HasSubstr("p.jsonl has no prompts"));
  EXPECT_THAT(said("{\"prompt\": \"a\"}\nx"), HasSubstr("p.jsonl:2: no JSON object"));
  EXPECT_THAT(said("[1]"), HasSubstr("p.jsonl:1: no JSON object"));
  EXPECT_THAT(said("{}"), HasSubstr("either \"prompt\" or \"messages\""));
  EXPECT_THAT(said("{\"prompt\": \"a\", \"messages\": []}"), HasSubstr("either"));
  EXPECT_THAT(said("{\"prompt\": \"\"}"), HasSubstr("prompt isn't a text"));
  EXPECT_THAT(said("{\"prompt\": 1}"), HasSubstr("prompt isn't a text"));
  EXPECT_THAT(said("{\"messages\": []}"), HasSubstr("messages isn't a list"));
  EXPECT_THAT(said("{\"messages\": [1]}"), HasSubstr("objects with a role"));
  EXPECT_THAT(said("{\"messages\": [{\"role\": \"user\"}]}", Messages::kRefused),
              HasSubstr("wanted --chat"));
  for (const char* bad : {"0", "-1", "1.5", "\"5\"", "99999999"}) {
    EXPECT_THAT(said(std::string("{\"prompt\": \"a\", \"max_tokens\": ") + bad + "}"),
                HasSubstr("max_tokens isn't a whole number"));
  }
}

struct RandomPrompts : ::testing::Test {
  RandomPrompts() : words(*PromptWords::find(counter)) {}
  WorkloadOptions options() const {
    return {.api = Api::kCompletions,
            .model = "m",
            .input = {10, 30},
            .output = {1, 4},
            .shared_prefix = 0,
            .ignore_eos = true,
            .seed = 7,
            .level = 0};
  }
  static std::string prompt_of(const PlannedRequest& r) { return json::parse(r.body)["prompt"]; }

  FakeCounter counter{{}};
  PromptWords words;
};

TEST_F(RandomPrompts, TheSameSeedGivesTheSameRequestsInAnyOrderOfAsking) {
  const Workload a(options(), words), b(options(), words);
  std::vector<std::string> forwards, backwards;
  for (int i = 0; i < 50; ++i) forwards.push_back(a.request(i).body);
  for (int i = 49; i >= 0; --i) backwards.insert(backwards.begin(), b.request(i).body);
  EXPECT_EQ(forwards, backwards);
  EXPECT_EQ(std::set(forwards.begin(), forwards.end()).size(), 50u) << "no two are alike";
  WorkloadOptions other = options();
  other.seed = 8;
  EXPECT_NE(Workload(other, words).request(0).body, forwards[0]);
  other = options();
  other.level = 1;
  EXPECT_NE(prompt_of(Workload(other, words).request(0)), prompt_of(a.request(0)))
      << "a level's prompts aren't in the server's cache from the level before";
  EXPECT_DOUBLE_EQ(a.gap(3, 2), b.gap(3, 2));
}

TEST_F(RandomPrompts, EveryLengthIsAsLikelyAsEveryOtherAndExact) {
  const Workload workload(options(), words);
  std::map<int64_t, int> inputs, outputs;
  constexpr int kRequests = 4200;
  for (int i = 0; i < kRequests; ++i) {
    const PlannedRequest r = workload.request(i);
    ++inputs[r.prompt_tokens];
    ++outputs[r.max_tokens];
    if (i < 100) {
      EXPECT_EQ(*counter.count(prompt_of(r)), r.prompt_tokens);
    }
  }
  EXPECT_EQ(inputs.size(), 21u);
  EXPECT_EQ(inputs.begin()->first, 10);
  EXPECT_EQ(inputs.rbegin()->first, 30);
  for (const auto& [tokens, n] : inputs) EXPECT_NEAR(n, 200, 80) << tokens;
  EXPECT_EQ(outputs.size(), 4u);
}

TEST_F(RandomPrompts, TheSharedPartIsSharedAndNoMore) {
  WorkloadOptions half = options();
  half.input = {40, 40};
  half.shared_prefix = 0.5;
  const Workload workload(half, words);
  const auto common = [&](int64_t i, int64_t j) {
    const std::string a = prompt_of(workload.request(i)), b = prompt_of(workload.request(j));
    const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    return *counter.count(std::string(a.begin(), end)) - 1;  // the word that is cut counts, too
  };
  for (int i = 1; i < 10; ++i) {
    EXPECT_GE(common(0, i), 19) << i;
    EXPECT_LE(common(0, i), 22) << i;
  }
  half.shared_prefix = 1;
  EXPECT_EQ(prompt_of(Workload(half, words).request(0)),
            prompt_of(Workload(half, words).request(1)));
  half.level = 5;
  EXPECT_EQ(prompt_of(Workload(half, words).request(0)),
            prompt_of(Workload(half, words).request(9)));
}

TEST_F(RandomPrompts, TheBodyAsksForAStreamWithUsage) {
  const json body = json::parse(Workload(options(), words).request(0).body);
  EXPECT_EQ(body["model"].get<std::string>(), "m");
  EXPECT_TRUE(body["stream"].get<bool>());
  EXPECT_TRUE(body["stream_options"]["include_usage"].get<bool>());
  EXPECT_TRUE(body["ignore_eos"].get<bool>());
  EXPECT_EQ(body["temperature"].get<int>(), 0);
  WorkloadOptions chat = options();
  chat.api = Api::kChat;
  chat.ignore_eos = false;
  const json message = json::parse(Workload(chat, words).request(0).body);
  EXPECT_FALSE(message.contains("ignore_eos"));
  EXPECT_FALSE(message.contains("prompt"));
  EXPECT_EQ(message["messages"][0]["role"].get<std::string>(), "user");
}

TEST_F(RandomPrompts, ArrivalsAreAsFarApartAsAPoissonProcessHasThem) {
  const Workload workload(options(), words);
  double sum = 0, squares = 0;
  constexpr int kGaps = 20000;
  for (int i = 0; i < kGaps; ++i) {
    const double gap = workload.gap(i, 4);
    EXPECT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / kGaps;
  EXPECT_NEAR(mean, 0.25, 0.01);
  EXPECT_NEAR(squares / kGaps - mean * mean, 0.0625, 0.004) << "the variance is the mean squared";
}

TEST(FilePrompts, AreTakenInTurnOverAndOver) {
  const std::vector<FilePrompt> prompts = {{.prompt = "a", .messages = "", .max_tokens = {}},
                                           {.prompt = "b", .messages = "", .max_tokens = 3}};
  const Workload workload({.api = Api::kCompletions,
                           .model = "m",
                           .input = {},
                           .output = {9, 9},
                           .shared_prefix = 0,
                           .ignore_eos = false,
                           .seed = 0,
                           .level = 0},
                          prompts);
  const auto at = [&](int64_t i) { return json::parse(workload.request(i).body); };
  EXPECT_EQ(at(0)["prompt"].get<std::string>(), "a");
  EXPECT_EQ(at(1)["prompt"].get<std::string>(), "b");
  EXPECT_EQ(at(2)["prompt"].get<std::string>(), "a");
  EXPECT_EQ(at(0)["max_tokens"].get<int>(), 9);
  EXPECT_EQ(at(1)["max_tokens"].get<int>(), 3);
  EXPECT_EQ(workload.request(0).prompt_tokens, -1);
}

}  // namespace
}  // namespace kvant::load
