// Event streams and answers, cut in every place where a network may cut them.
#include <gmock/gmock.h>

#include "load/answer_stream.h"
#include "scripted_server.h"

namespace kvant::load {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Heard {
  std::vector<std::string> data;
  Status status;
};
Heard heard(const std::string& bytes, size_t piece = 1) {
  Heard out;
  EventStream events;
  for (size_t at = 0; at < bytes.size() && out.status.ok(); at += piece) {
    out.status = events.feed(std::string_view(bytes).substr(at, piece), [&](std::string_view data) {
      out.data.emplace_back(data);
      return true;
    });
  }
  return out;
}

TEST(EventStream, LinesMayEndInAnyOfThreeWays) {
  for (size_t piece = 1; piece < 40; ++piece) {
    EXPECT_THAT(heard("data: a\n\ndata: b\r\n\r\ndata:c\r\rdata: d\n\n", piece).data,
                ElementsAre("a", "b", "c", "d"))
        << piece;
  }
}

TEST(EventStream, CommentsOtherFieldsAndSeveralLinesOfData) {
  EXPECT_THAT(heard(": keep-alive\n\nevent: x\nid: 1\nretry: 5\ndata: a\ndata: b\n\ndata\n\n").data,
              ElementsAre("a\nb", ""));
  EXPECT_THAT(heard("\xef\xbb\xbf"
                    "data:  a\n\n")
                  .data,
              ElementsAre(" a"));
  EXPECT_THAT(heard("data: unfinished").data, ElementsAre());
}

TEST(EventStream, WhatIsNoEventStreamIsAnError) {
  const Heard page = heard("<html>\n<body>");
  EXPECT_EQ(page.status.code(), Code::kCorrupt);
  EXPECT_THAT(page.status.message(), HasSubstr("\"<html>\" is no line of an event stream"));
  EventStream endless;
  Status status;
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 20 && status.ok(); ++i)
    status = endless.feed("data" + piece, [](std::string_view) { return true; });
  EXPECT_EQ(status.code(), Code::kCorrupt) << "an event may not grow for ever";
}

TEST(EventStream, NothingIsHeardBehindTheLastWord) {
  EventStream events;
  int calls = 0;
  EXPECT_TRUE(events
                  .feed("data: a\n\ndata: b\n\n<html>\n",
                        [&](std::string_view) {
                          ++calls;
                          return false;
                        })
                  .ok());
  EXPECT_EQ(calls, 1);
}

RequestRecord wanting(int64_t tokens, bool exactly = false) {
  RequestRecord record;
  record.max_tokens = tokens;
  record.exact_tokens = exactly;
  record.sent_ns = 0;
  return record;
}

RequestRecord answered(const std::string& bytes, RequestRecord record, size_t piece = 1 << 20,
                       bool whole = true) {
  AnswerStream answer(record, KeepText::kYes);
  int64_t now = 0;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    if (!answer.feed(std::string_view(bytes).substr(at, piece), ++now)) break;
  }
  answer.finish(whole);
  return record;
}

const std::string kEmoji = "caf\xc3\xa9 \xf0\x9f\x98\x80";

TEST(AnswerStream, CaseD5_CharactersAndLinesCutAnywhereComeOutWhole) {
  const std::string bytes =
      text_event(kEmoji) + text_event("!") + finish_event("stop") + usage_event(7, 2, 3) + kDone;
  // dump() escapes nothing here, so that every byte of the emoji is in the stream.
  ASSERT_THAT(bytes, HasSubstr("\xf0\x9f\x98\x80"));
  for (size_t piece = 1; piece < 60; ++piece) {
    const RequestRecord record = answered(bytes, wanting(8), piece);
    ASSERT_EQ(record.outcome, Outcome::kSuccess) << piece << ": " << record.detail;
    EXPECT_EQ(record.text, kEmoji + "!") << piece;
    EXPECT_EQ(record.gaps_ns.size(), 1u);
    EXPECT_EQ(record.usage->prompt_tokens, 7);
    EXPECT_EQ(record.usage->completion_tokens, 2);
    EXPECT_EQ(record.usage->cached_tokens, 3);
  }
}

TEST(AnswerStream, TheTimeOfATextIsWhenItsLastByteCame) {
  RequestRecord record = wanting(3);
  AnswerStream answer(record, KeepText::kNo);
  const std::string first = text_event("a"), second = text_event("b");
  answer.feed(first.substr(0, 10), 100);
  EXPECT_EQ(record.first_ns, -1);
  answer.feed(first.substr(10) + second.substr(0, 5), 200);
  answer.feed(second.substr(5), 500);
  answer.feed(finish_event() + usage_event(1, 2), 900);
  answer.feed(kDone, 1000);
  answer.finish(true);
  EXPECT_EQ(record.first_ns, 200);
  EXPECT_EQ(record.last_ns, 500) << "events without text have no time of their own";
  EXPECT_THAT(record.gaps_ns, ElementsAre(300));
  EXPECT_EQ(record.text, "");
}

TEST(AnswerStream, ChatsBeginWithTheirFirstTextNotWithTheRole) {
  const auto call = [](const nlohmann::json& function) {
    return chat_event({{"tool_calls", {{{"index", 0}, {"function", function}}}}});
  };
  const RequestRecord record = answered(
      chat_event({{"role", "assistant"}, {"content", ""}}) + chat_event({{"content", nullptr}}) +
          chat_event({{"reasoning_content", "hm"}}) + chat_event({{"content", "yes"}}) +
          call({{"name", "f"}, {"arguments", ""}}) + call({{"arguments", "{}"}}) + kDone,
      wanting(9));
  EXPECT_EQ(record.outcome, Outcome::kSuccess) << record.detail;
  EXPECT_EQ(record.text, "hmyesf{}");
  EXPECT_EQ(record.gaps_ns.size(), 3u);
  EXPECT_FALSE(record.usage);
}

TEST(AnswerStream, CaseD3_UsageThatIsNullInEveryChunkButTheLast) {
  nlohmann::json chunk_json = {{"choices", {{{"index", 0}, {"text", "a"}}}}, {"usage", nullptr}};
  const RequestRecord record =
      answered(event(chunk_json) + event(chunk_json) + usage_event(5, 2) + kDone, wanting(2));
  EXPECT_EQ(record.outcome, Outcome::kSuccess);
  EXPECT_EQ(record.usage->completion_tokens, 2);
}

TEST(AnswerStream, EveryFailureHasItsKind) {
  const struct {
    std::string bytes;
    bool whole;
    Outcome outcome;
    std::string_view detail;
  } kCases[] = {
      {"", false, Outcome::kEarlyClose, "ended before its first token"},
      {"", true, Outcome::kMalformed, "no event stream"},
      {"{\"choices\": []}", true, Outcome::kMalformed, "no event stream"},
      {text_event("a"), true, Outcome::kEarlyClose, "ended before its last token"},
      {text_event("a") + finish_event(), false, Outcome::kEarlyClose, "before its last token"},
      {text_event("a") + "data: {\"choi", true, Outcome::kEarlyClose, "before its last token"},
      {"data: {nonsense}\n\n", true, Outcome::kMalformed, "an event is no JSON: {nonsense}"},
      {"data: [1]\n\n", true, Outcome::kMalformed, "an event is no JSON"},
      {"data: {\"a\": \"\xff\"}\n\n", true, Outcome::kMalformed, "an event is no JSON"},
      {"data: {\"id\": 1}\n\n", true, Outcome::kMalformed, "neither choices nor usage"},
      {"{\"choices\": []}\n", true, Outcome::kMalformed, "is no line of an event stream"},
      {text_event("a") + "data: {\"error\": {\"message\": \"out of pages\"}}\n\n", true,
       Outcome::kErrorEvent, "out of pages"},
      {"data: {\"error\": \"gone\"}\n\n", true, Outcome::kErrorEvent, "gone"},
      {text_event("a") + usage_event(1, 5) + kDone, true, Outcome::kWrongCount,
       "the answer has 5 tokens, wanted at most 4"},
  };
  for (const auto& c : kCases) {
    const RequestRecord record = answered(c.bytes, wanting(4), 1 << 20, c.whole);
    EXPECT_EQ(record.outcome, c.outcome) << c.bytes;
    EXPECT_THAT(record.detail, HasSubstr(std::string(c.detail))) << c.bytes;
    EXPECT_TRUE(record.failed());
  }
}

TEST(AnswerStream, FewerTokensAreAFailureOnlyWhereAllWereToCome) {
  const std::string three = text_event("a") + usage_event(1, 3) + kDone;
  EXPECT_EQ(answered(three, wanting(4)).outcome, Outcome::kSuccess);
  EXPECT_EQ(answered(three, wanting(3, true)).outcome, Outcome::kSuccess);
  const RequestRecord record = answered(three, wanting(4, true));
  EXPECT_EQ(record.outcome, Outcome::kWrongCount);
  EXPECT_EQ(record.detail, "the answer has 3 tokens, wanted 4");
}

TEST(AnswerStream, AFinishReasonAndAWholeBodyStandForDone) {
  EXPECT_EQ(answered(text_event("a") + finish_event(), wanting(4)).outcome, Outcome::kSuccess);
}

TEST(AnswerStream, MessagesOfErrorsOfEveryShape) {
  EXPECT_EQ(error_message(R"({"error": {"message": "no"}})"), "no");
  EXPECT_EQ(error_message(R"({"error": "no"})"), "no");
  EXPECT_EQ(error_message(R"({"message": "no"})"), "no");
  EXPECT_EQ(error_message(R"({"detail": [1]})"), R"({"detail":[1]})");
  EXPECT_EQ(error_message("<html>\nbad"), "<html> bad");
  EXPECT_EQ(error_message(std::string(5000, 'x')).size(), 200u);
}

}  // namespace
}  // namespace kvant::load
