// Documents drawn from files: what is kept, and what is wrong with a line.
#include "calibrate/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "files/temp_file.h"

namespace kvant {
namespace {

using testing::HasSubstr;

DocumentRequest request_of(const std::vector<std::string>& paths, int64_t samples,
                           uint64_t seed = 0) {
  return {.paths = paths, .samples = samples, .seed = seed, .max_bytes = 100};
}

std::string lines(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  return out;
}

std::vector<std::string> texts(const Documents& documents) {
  std::vector<std::string> out;
  for (const Document& document : documents.sample) out.push_back(document.text);
  return out;
}

TEST(Documents, AllAreKeptInOrderWhereThereAreFew) {
  const TempFile a(lines(3), ".jsonl");
  const TempFile b(
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
      "\"content\": \"Hello\"}]}\n\n",
      ".jsonl");
  const auto documents = sample_documents(request_of({a.path(), b.path()}, 10));
  ASSERT_TRUE(documents.ok()) << documents.status().message();
  EXPECT_THAT(texts(*documents),
              testing::ElementsAre("document 0", "document 1", "document 2", ""));
  ASSERT_EQ(documents->sample[3].messages.size(), 2u);
  EXPECT_EQ(documents->sample[3].messages[1].content, "Hello");
  EXPECT_EQ(documents->seen, 4);
}

TEST(Documents, ANulByteIsOneLikeOthers) {
  using namespace std::string_literals;
  const TempFile file("one\0two\n\0three"s, ".txt");
  const auto documents = sample_documents(request_of({file.path()}, 10));
  ASSERT_TRUE(documents.ok()) << documents.status().message();
  EXPECT_THAT(texts(*documents), testing::ElementsAre("one\0two\n\0three\n"s));
}

// K2: by seed, without replacement, every document as likely as any other.
TEST(Documents, ASeedDrawsTheSameSampleAgain) {
  const TempFile file(lines(50), ".jsonl");
  std::vector<int> drawn(50, 0);
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const auto once = sample_documents(request_of({file.path()}, 10, seed));
    if (seed < 5) {
      const auto again = sample_documents(request_of({file.path()}, 10, seed));
      EXPECT_EQ(texts(*once), texts(*again));
      EXPECT_EQ(once->digest, again->digest);
    }
    ASSERT_EQ(once->sample.size(), 10u);
    std::set<std::string> distinct;
    for (const std::string& text : texts(*once)) {
      distinct.insert(text);
      ++drawn[static_cast<size_t>(std::stoi(text.substr(9)))];
    }
    EXPECT_EQ(distinct.size(), 10u);
  }
  for (const int count : drawn) {  // 80 expected; five standard deviations are 40
    EXPECT_GT(count, 40);
    EXPECT_LT(count, 120);
  }
}

TEST(Documents, PlainTextIsCutAtLineBreaks) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "line number " + std::to_string(i) + "\n";
  const TempFile file(text, ".txt");
  const auto documents = sample_documents(request_of({file.path()}, 100));
  ASSERT_TRUE(documents.ok()) << documents.status().message();
  std::string together;
  for (const Document& document : documents->sample) {
    EXPECT_LE(document.text.size(), 101u);
    EXPECT_EQ(document.text.back(), '\n');
    together += document.text;
  }
  EXPECT_EQ(together, text);
}

TEST(Documents, LongLinesAreCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "\u00e9";
  const TempFile plain(text, ".txt");
  const auto documents = sample_documents(request_of({plain.path()}, 100));
  ASSERT_TRUE(documents.ok()) << documents.status().message();
  std::string together;
  for (const Document& document : documents->sample) {
    EXPECT_LE(document.text.size(), 101u);
    together += document.text;
  }
  EXPECT_EQ(together, text) << "the line's end alone is no document";
  const TempFile line("{\"text\": \"" + text + "\"}", ".jsonl");
  const auto cut = sample_documents(request_of({line.path()}, 1));
  EXPECT_EQ(cut->sample[0].text, text.substr(0, 100));
}

TEST(Documents, ABadLineIsNamedOrCounted) {
  for (const auto& [line, wanted] :
       {std::pair{"{\"text\": 7}", "text"},
        {"no JSON", "line 2"},
        {"{\"other\": \"x\"}", "wanted an object with either"},
        {"{\"text\": \"a\", \"messages\": []}", "wanted an object with either"},
        {"{\"messages\": []}", "is empty"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "content"},
        {"[1, 2]", "line 2"}}) {
    const TempFile file(lines(1) + line + "\n" + lines(1), ".jsonl");
    DocumentRequest request = request_of({file.path()}, 10);
    const Status status = sample_documents(request).status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << line;
    EXPECT_THAT(status.message(), HasSubstr("line 2")) << line;
    EXPECT_THAT(status.message(), HasSubstr(wanted)) << line;
    request.skip_bad = true;
    const auto documents = sample_documents(request);
    ASSERT_TRUE(documents.ok()) << line;
    EXPECT_EQ(documents->skipped, 1);
    EXPECT_EQ(documents->sample.size(), 2u);
  }
}

TEST(Documents, FilesWithoutADocumentAreRefused) {
  for (const char* content : {"", "\n\n", "   \n"}) {
    for (const char* extension : {".jsonl", ".txt"}) {
      const TempFile file(content, extension);
      EXPECT_THAT(sample_documents(request_of({file.path()}, 1)).status().message(),
                  HasSubstr("holds no document"));
    }
  }
  EXPECT_EQ(sample_documents(request_of({"/nowhere/x.txt"}, 1)).status().code(), Code::kNotFound);
  EXPECT_THAT(sample_documents(request_of({"/tmp"}, 1)).status().message(),
              HasSubstr("is a directory"));
}

}  // namespace
}  // namespace kvant
