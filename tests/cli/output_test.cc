#include "cli/output.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

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
  Result<NpyWriter> writer = NpyWriter::create(path, 2, 3);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->write(std::vector<float>{1, 2, 3}).ok());
  ASSERT_TRUE(writer->write(std::vector<float>{4, 5, 6}).ok());
  ASSERT_TRUE(writer->finish().ok());
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
  Result<NpyWriter> writer = NpyWriter::create((scratch() / "n.npy").string(), 1, 2);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer->write(std::vector<float>{1, 2, 3}).code(), Code::kInternal);
  EXPECT_EQ(writer->finish().code(), Code::kInternal);
}

}  // namespace
}  // namespace kvant::cli
