// Sequences out of the pool and back.
#include "cache/swap.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "cache/page_harness.h"

namespace kvant {
namespace {

const ReadRule kFull = {.seals = true, .sink_pages = 1};
const std::vector<ReadRule> kMixed = {kFull, {.seals = false, .window = 100}, {.seals = false}};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class SwapTest : public testing::TestWithParam<bool> {
 protected:
  std::string file() const {
    return GetParam() ? testing::TempDir() + "kvant-swap-test-" + std::to_string(getpid()) : "";
  }
};
INSTANTIATE_TEST_SUITE_P(ToMemoryAndFile, SwapTest, testing::Bool());

TEST_P(SwapTest, CaseC12_EveryPageComesBackAsItWas) {
  PageHarness h(kMixed, {.fill = 0x7f});
  for (const int tail : {0, 1, 63}) {
    const std::vector<int32_t> tokens = tokens_of({1, 2, 3, 4}, tail);
    const SequenceId id = h.table().create();
    ASSERT_TRUE(h.append(id, tokens, static_cast<int64_t>(tokens.size())).ok());
    ASSERT_TRUE(swap_out(h.swap_context(), id, file()).ok());
    EXPECT_EQ(h.pool().live_bytes(), 0u);
    EXPECT_EQ(h.sequence(id).swapped->memory_bytes() > 0, !GetParam());
    EXPECT_EQ(std::filesystem::exists(file()), GetParam());
    h.check();
    EXPECT_EQ(h.append(id, tokens_of({1, 2, 3, 4, 5}), 320).code(), Code::kInvalidArgument);
    EXPECT_EQ(h.table().fork(id, 10).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(h.table().truncate(id, 10).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(swap_out(h.swap_context(), id, "").code(), Code::kInvalidArgument);
    ASSERT_TRUE(swap_in(h.swap_context(), id).ok());
    EXPECT_FALSE(std::filesystem::exists(file()));
    h.check_rows(id, tokens);
    h.check();
    EXPECT_EQ(swap_in(h.swap_context(), id).code(), Code::kInvalidArgument);
    const std::vector<int32_t> more = tokens_of({1, 2, 3, 4}, 63 + 64);
    if (tail > 0) {
      ASSERT_TRUE(h.append(id, more, 350).ok());
      h.check_rows(id, more);
    }
    ASSERT_TRUE(h.table().release(id).ok());
  }
  EXPECT_EQ(h.pool().live_bytes(), 0u);
}

TEST_P(SwapTest, WhatIsReleasedWhileItIsOutIsGone) {
  PageHarness h(kMixed, {});
  const std::vector<int32_t> tokens = tokens_of({1, 2}, 5);
  const SequenceId id = h.read(tokens);
  ASSERT_TRUE(swap_out(h.swap_context(), id, file()).ok());
  ASSERT_TRUE(h.table().release(id).ok());
  EXPECT_FALSE(std::filesystem::exists(file()));
  h.check();
}

TEST_P(SwapTest, WhatTheIndexStillHasIsSharedAgain) {
  PageHarness h({kFull}, {.max_live_bytes = 6 * PageHarness::kSlabBytes});
  const std::vector<int32_t> tokens = tokens_of({1, 2, 3}, 5);
  const SequenceId id = h.read(tokens);
  ASSERT_TRUE(swap_out(h.swap_context(), id, file()).ok());
  EXPECT_EQ(h.pool().cached_bytes(), 3 * PageHarness::kSlabBytes);
  ASSERT_TRUE(swap_in(h.swap_context(), id).ok());
  EXPECT_EQ(h.pool().live_slabs(), 4u);
  h.check_rows(id, tokens);
  // Out again, and the index loses the last pages meanwhile: these come back by themselves.
  ASSERT_TRUE(swap_out(h.swap_context(), id, file()).ok());
  h.visit(tokens_of({1, 5, 6, 7, 8, 9}, 0));
  ASSERT_EQ(h.hit(tokens), 64);
  ASSERT_TRUE(swap_in(h.swap_context(), id).ok());
  h.check_rows(id, tokens);
  EXPECT_TRUE(h.publish(id, tokens).ok());
  EXPECT_EQ(h.hit(tokens), 192);
  h.check();
}

// The index lost the chain while the sequence was out, and got it again from another: the
// sequence's next page hangs on pages that it holds, so that whatever is cached can go.
TEST_P(SwapTest, AChainThatOthersPublishedMeanwhileIsSharedFromTheStart) {
  PageHarness h({kFull}, {.max_live_bytes = 9 * PageHarness::kSlabBytes});
  const std::vector<int32_t> tokens = tokens_of({1, 2, 3}, 5);
  const SequenceId id = h.table().create();
  ASSERT_TRUE(h.append(id, tokens, 128).ok());
  ASSERT_TRUE(h.publish(id, std::span(tokens).first(128)).ok());
  ASSERT_TRUE(swap_out(h.swap_context(), id, file()).ok());
  h.index().clear();
  ASSERT_TRUE(swap_in(h.swap_context(), id).ok());
  h.visit(tokens_of({1, 2}));
  EXPECT_EQ(h.pool().live_slabs(), 4u);
  ASSERT_TRUE(h.append(id, tokens, 192).ok());
  ASSERT_TRUE(h.publish(id, std::span(tokens).first(192)).ok());
  EXPECT_EQ(h.pool().live_slabs(), 3u);
  EXPECT_EQ(h.pool().cached_bytes(), 0u);
  h.check();
}

TEST_P(SwapTest, WithoutRoomItStaysOut) {
  PageHarness h({kFull}, {.max_live_bytes = 5 * PageHarness::kSlabBytes});
  const std::vector<int32_t> tokens = tokens_of({1, 2}, 5);
  const SequenceId a = h.table().create(), b = h.table().create();
  ASSERT_TRUE(h.append(a, tokens, 133).ok());
  ASSERT_TRUE(swap_out(h.swap_context(), a, file()).ok());
  ASSERT_TRUE(h.append(b, tokens, 133).ok());
  EXPECT_EQ(swap_in(h.swap_context(), a).code(), Code::kExhausted);
  h.check();
  ASSERT_TRUE(h.table().release(b).ok());
  ASSERT_TRUE(swap_in(h.swap_context(), a).ok());
  h.check_rows(a, tokens);
}

// A file that isn't what was written is refused with its name, nothing changes, and once it is
// whole again it serves.
TEST(Swap, CaseC14_ADamagedFileIsRefused) {
  const std::string path = testing::TempDir() + "kvant-swap-damaged-" + std::to_string(getpid());
  PageHarness h(kMixed, {});
  const std::vector<int32_t> tokens = tokens_of({1, 2, 3}, 5);
  const SequenceId id = h.table().create();
  ASSERT_TRUE(h.append(id, tokens, 197).ok());
  ASSERT_TRUE(swap_out(h.swap_context(), id, path).ok());
  const std::string good = read_file(path);
  const auto refuse = [&](const std::string& bytes, const std::string& what) {
    write_file(path, bytes);
    const Status status = swap_in(h.swap_context(), id);
    EXPECT_EQ(status.code(), Code::kCorrupt) << what;
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
    EXPECT_EQ(h.pool().live_bytes(), 0u);
  };
  for (int i = 0; i < 20; ++i)
    refuse(good.substr(0, good.size() * static_cast<size_t>(i) / 20), "cut " + std::to_string(i));
  refuse(good + "x", "longer");
  Rng rng(3);
  for (int i = 0; i < 50; ++i) {
    std::string bad = good;
    // Half of them in the header, whose padding counts too.
    const size_t at = rng.below(i % 2 == 0 ? 128 : bad.size());
    bad[at] = static_cast<char>(bad[at] ^ (1 << rng.below(8)));
    refuse(bad, "bit in byte " + std::to_string(at));
  }
  write_file(path, good);
  SwapContext other = h.swap_context();
  other.identity = "fedcba9876543210fedcba9876543210";
  const Status status = swap_in(other, id);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(status.message().find("identity"), std::string::npos) << status.message();
  std::filesystem::remove(path);
  EXPECT_EQ(swap_in(h.swap_context(), id).code(), Code::kIo);
  write_file(path, good);
  ASSERT_TRUE(swap_in(h.swap_context(), id).ok());
  h.check_rows(id, tokens);
  h.check();
}

// A folder that isn't there, a file that is already, a disk that takes no more: an error with the
// name, the sequence stays where it was, and no part of a file is left.
TEST(Swap, AFileThatCannotBeWrittenIsAnError) {
  PageHarness h({kFull}, {});
  const std::vector<int32_t> tokens = tokens_of({1}, 5);
  const SequenceId id = h.read(tokens);
  const std::string path = testing::TempDir() + "kvant-swap-full-" + std::to_string(getpid());
  const auto refuse = [&](const std::string& file) {
    const Status status = swap_out(h.swap_context(), id, file);
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_NE(status.message().find(file), std::string::npos) << status.message();
    h.check_rows(id, tokens);
  };
  refuse("/nowhere/at/all");
  write_file(path, "mine");
  refuse(path);
  EXPECT_EQ(read_file(path), "mine");
  std::filesystem::remove(path);

  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {100, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  refuse(path);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(swap_out(h.swap_context(), id, path).ok());
  ASSERT_TRUE(swap_in(h.swap_context(), id).ok());
  h.check_rows(id, tokens);
}

}  // namespace
}  // namespace kvant
