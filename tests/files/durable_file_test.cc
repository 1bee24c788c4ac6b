// Files that are whole or not there.
#include "files/durable_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "temp_file.h"

namespace kvant {
namespace {

std::string content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

size_t num_files(const std::filesystem::path& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                           std::filesystem::directory_iterator()));
}

TEST(DurableFile, IsWrittenOrReplaced) {
  const TempFolder folder;
  const std::filesystem::path path = folder.path() / "a";
  for (const char* bytes : {"one", "another"}) {
    ASSERT_TRUE(write_durably(path, bytes).ok());
    EXPECT_EQ(content(path), bytes);
    EXPECT_EQ(num_files(folder.path()), 1u);
  }
}

TEST(DurableFile, AFullDiskLeavesWhatWasThere) {
  const TempFolder folder;
  const std::filesystem::path path = folder.write("a", "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Status status = write_durably(path, std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find(path.string()), std::string::npos) << status.message();
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(num_files(folder.path()), 1u);
}

TEST(DurableFile, AFolderThatIsntThereIsNamed) {
  EXPECT_EQ(write_durably("/nowhere/a", "x").code(), Code::kIo);
}

}  // namespace
}  // namespace kvant
