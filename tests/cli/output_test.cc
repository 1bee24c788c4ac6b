#include "cli/output.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cli/cache_size.h"
#include "cli/memory.h"
#include "cli/npy.h"
#include "cli/terminal.h"
#include "run_program.h"

namespace kvant::cli {
namespace {

TEST(Table, AlignsNumbersToTheRightAndCountsCharactersNotBytes) {
  Table table({{"name", true}, {"bits"}});
  table.add_row({{"ä"}, {"8.5"}});
  table.add_row({{"int4", Color::kBold}, {"4.25"}});
  EXPECT_EQ(table.render(false), "name  bits\nä      8.5\nint4  4.25\n");
  EXPECT_NE(table.render(true).find("\x1b[1mint4\x1b[0m"), std::string::npos);
}

TEST(Terminal, NumbersForPeople) {
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(98150000), "98.2 MB");
  EXPECT_EQ(human_bytes(1500), "1.50 kB");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(0.0000123), "1.23e-05");
  EXPECT_EQ(short_number(0.01234), "0.0123");
}

TEST(Table, HeadingsTakePartInNoColumn) {
  Table table({{"name", true}, {"bits"}});
  table.add_heading("a heading that is long");
  table.add_row({{"x"}, {"8"}});
  EXPECT_EQ(table.render(false), "name  bits\n\na heading that is long\nx        8\n");
}

TEST(Terminal, OneIsSingular) {
  EXPECT_EQ(counted(1, "token"), "1 token");
  EXPECT_EQ(counted(0, "token"), "0 tokens");
  EXPECT_EQ(counted(2, "KV head"), "2 KV heads");
}

TEST(CacheSize, BitsAreSaidWhereTheySaySomething) {
  const CacheUsage open{.live_bytes = 6400, .exact_bytes = 6400, .ideal_bytes = 500};
  EXPECT_FALSE(effective_bits(open, 0).has_value());
  EXPECT_FALSE(effective_bits(open, 16).has_value());
  EXPECT_EQ(describe_size(open, 0), "6.40 kB, no page sealed yet");
  EXPECT_EQ(describe_size(open, 16), "6.40 kB, pages partly filled");
  const CacheUsage full{.live_bytes = 6400, .exact_bytes = 6400, .ideal_bytes = 6400};
  EXPECT_EQ(effective_bits(full, 16).value_or(0), 16);
  EXPECT_FALSE(effective_bits(full, 0).has_value());
  const CacheUsage sealed{
      .live_bytes = 4800, .sealed_bytes = 1600, .exact_bytes = 3200, .ideal_bytes = 6400};
  EXPECT_EQ(describe_size(sealed, 0), "4.80 kB, 12.00 bits per element");
}

TEST(Memory, TooMuchIsRefusedWithWhatTakesItAndWhatHelps) {
  MemoryBudget budget;
  EXPECT_TRUE(budget.check(0).ok());
  EXPECT_EQ(budget.explain_shortage() + budget.advice(), "memory ran out");
  budget.add("2 tokens at once", 1e6, "a smaller --chunk takes less");
  budget.add("9000 tokens cached in int8", 3e9, "a smaller --context takes less");
  budget.add("weights as f32", 2e9, "--weights native takes less");
  EXPECT_TRUE(budget.check(6'000'000'000).ok());
  const Status status = budget.check(4'000'000'000);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_EQ(status.message() + budget.advice(),
            "4.00 GB of memory are available, wanted 3.00 GB for 9000 tokens cached in int8, 2.00 "
            "GB for weights as f32; a smaller --context takes less");
  EXPECT_EQ(budget.explain_shortage(),
            "memory ran out; wanted 3.00 GB for 9000 tokens cached in int8, 2.00 GB for weights as "
            "f32");
}

TEST(Memory, SomeIsAvailableAndNoMoreThanThereIs) {
  EXPECT_GT(available_memory(), uint64_t{1} << 20);
  EXPECT_LE(available_memory(), total_memory());
}

TEST(Output, WritableIsFoundOutWithoutATrace) {
  EXPECT_TRUE(check_writable("").ok());
  EXPECT_TRUE(check_writable("-").ok());
  EXPECT_TRUE(check_writable("/dev/null").ok());
  const std::string old = write_file("old.json", "old"), fresh = (scratch() / "fresh").string();
  EXPECT_TRUE(check_writable(old).ok());
  EXPECT_EQ(slurp(old), "old");
  EXPECT_TRUE(check_writable(fresh).ok());
  EXPECT_FALSE(std::filesystem::exists(fresh));
  EXPECT_EQ(check_writable("/nowhere/x").code(), Code::kIo);
  EXPECT_EQ(check_writable(scratch().string()).code(), Code::kInvalidArgument);
}

TEST(Output, CsvQuotesWhatNeedsIt) {
  EXPECT_EQ(csv_line(std::vector<std::string>{"a", "b,c", "say \"x\"", ""}),
            "a,\"b,c\",\"say \"\"x\"\"\",\n");
}

TEST(Output, JsonIsAlwaysValid) {
  const std::string path = (scratch() / "odd.json").string();
  ASSERT_TRUE(write_json(path, {{"text", "\xff\xc3"}, {"nan", std::nan("")}}).ok());
  const nlohmann::json read = nlohmann::json::parse(slurp(path));
  EXPECT_EQ(read["text"], "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_TRUE(read["nan"].is_null());
}

TEST(Output, FilesThatCannotBeReadOrWrittenAreNamed) {
  EXPECT_EQ(read_file("/nowhere/x").status().code(), Code::kNotFound);
  EXPECT_EQ(read_file("/").status().code(), Code::kInvalidArgument);
  const Status status = write_text("/nowhere/x", "y");
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("/nowhere/x"), std::string::npos);
}

TEST(Npy, WritesTheHeaderThatNumPyReads) {
  const std::string path = (scratch() / "m.npy").string();
  NpyWriter writer(path, 2, 3);
  ASSERT_TRUE(writer.write(std::vector<float>{1, 2, 3}).ok());
  ASSERT_TRUE(writer.write(std::vector<float>{4, 5, 6}).ok());
  ASSERT_TRUE(writer.finish().ok());
  const std::string bytes = slurp(path);
  ASSERT_GE(bytes.size(), 10u);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header =
      static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  EXPECT_EQ((10 + header) % 64, 0u);
  EXPECT_EQ(bytes[10 + header - 1], '\n');
  EXPECT_NE(bytes.find("'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)"),
            std::string::npos);
  ASSERT_EQ(bytes.size(), 10 + header + 24);
  float last;
  std::memcpy(&last, bytes.data() + bytes.size() - 4, 4);
  EXPECT_EQ(last, 6.0f);
}

TEST(Npy, CountsItsRows) {
  NpyWriter writer((scratch() / "n.npy").string(), 1, 2);
  EXPECT_EQ(writer.write(std::vector<float>{1, 2, 3}).code(), Code::kInternal);
  EXPECT_EQ(writer.finish().code(), Code::kInternal);
}

TEST(Npy, LeavesAFileAloneUntilThereAreRows) {
  const std::string path = write_file("old.npy", "old");
  NpyWriter writer(path, 1, 2);
  EXPECT_EQ(slurp(path), "old");
  ASSERT_TRUE(writer.write(std::vector<float>{1, 2}).ok());
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_NE(slurp(path), "old");
  EXPECT_EQ(NpyWriter("/nowhere/x.npy", 1, 1).write(std::vector<float>{1}).code(), Code::kIo);
}

}  // namespace
}  // namespace kvant::cli
