// URLs, limits and numbers as they are typed, and percentiles as they are computed.
#include <gmock/gmock.h>

#include "load/slo.h"
#include "load/statistics.h"
#include "load/url.h"
#include "load/workload.h"

namespace kvant::load {
namespace {

using ::testing::HasSubstr;

TEST(Url, HostPortAndPrefixWithOrWithoutTheV1ThatClientsAdd) {
  const auto text = [](std::string_view url) { return parse_url(url)->text(); };
  EXPECT_EQ(text("http://localhost:8000"), "http://localhost:8000");
  EXPECT_EQ(text("http://localhost:8000/"), "http://localhost:8000");
  EXPECT_EQ(text("http://localhost:8000/v1/"), "http://localhost:8000");
  EXPECT_EQ(text("http://proxy/kvant/v1"), "http://proxy:80/kvant");
  EXPECT_EQ(text("127.0.0.1:1"), "http://127.0.0.1:1");
  EXPECT_EQ(text("http://[::1]:8000"), "http://[::1]:8000");
  EXPECT_EQ(parse_url("http://[::1]:8000")->host, "::1");
}

TEST(Url, OneSentenceForEveryBadOne) {
  EXPECT_EQ(parse_url("https://api.example.com").status().code(), Code::kUnsupported);
  EXPECT_THAT(parse_url("https://a").status().message(), HasSubstr("https isn't spoken here"));
  for (const char* bad : {"", "http://", "ftp://a", "http://a:0", "http://a:65536", "http://a:x",
                          "http://a:", "http://[::1", "http://a b", "http://u@a", "http://a?x=1",
                          "http://a/#b", "http://:80", "http://a\r\nX: y"}) {
    const Status status = parse_url(bad).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << bad;
    EXPECT_THAT(status.message(), HasSubstr("wanted http://HOST:PORT")) << bad;
  }
}

TEST(Slo, LimitsInSeconds) {
  const Slo slo = *parse_slo("ttft=2s,itl=100ms,tpot=80.5ms,e2e=1m,failures=1%");
  EXPECT_DOUBLE_EQ(*slo.ttft, 2);
  EXPECT_DOUBLE_EQ(*slo.itl, 0.1);
  EXPECT_DOUBLE_EQ(*slo.tpot, 0.0805);
  EXPECT_DOUBLE_EQ(*slo.e2e, 60);
  EXPECT_DOUBLE_EQ(slo.failures, 0.01);
  EXPECT_DOUBLE_EQ(parse_slo("failures=0.5")->failures, 0.5);
  EXPECT_FALSE(parse_slo("failures=1%")->any());
}

TEST(Slo, OneSentenceForEveryBadOne) {
  for (const char* bad : {"", "ttft", "ttft=", "ttft=2", "ttft=-2s", "ttft=0s", "ttft=2 s",
                          "ttft=nans", "ttft=1e3s", "latency=2s", "ttft=2s,", "ttft=2s,ttft=3s",
                          "failures=2", "failures=101%", "failures=x", "ttft=2h", "ttft=1.2.3s"}) {
    const Status status = parse_slo(bad).status();
    ASSERT_EQ(status.code(), Code::kInvalidArgument) << bad;
    EXPECT_THAT(status.message(), HasSubstr("--slo ")) << bad;
    EXPECT_THAT(status.message(), HasSubstr("wanted ")) << bad;
  }
}

TEST(Range, OneNumberOrTwo) {
  EXPECT_EQ(parse_range("512")->text(), "512");
  EXPECT_EQ(parse_range("512:1k")->text(), "512:1024");
  for (const char* bad : {"", ":", "1:", ":1", "0", "5:4", "1:2:3", "x", "-1"})
    EXPECT_EQ(parse_range(bad).status().code(), Code::kInvalidArgument) << bad;
}

TEST(Spread, PercentilesAreNumPys) {
  // numpy.percentile([1, 2, 3, 4], [50, 95, 99]) = 2.5, 3.85, 3.97
  const Spread four = spread_of({4, 2, 1, 3});
  EXPECT_EQ(four.count, 4);
  EXPECT_DOUBLE_EQ(four.mean, 2.5);
  EXPECT_DOUBLE_EQ(four.p50, 2.5);
  EXPECT_DOUBLE_EQ(four.p95, 3.85);
  EXPECT_DOUBLE_EQ(four.p99, 3.97);
  EXPECT_DOUBLE_EQ(four.min, 1);
  EXPECT_DOUBLE_EQ(four.max, 4);
  std::vector<double> hundred_and_one;
  for (int i = 100; i >= 0; --i) hundred_and_one.push_back(i);
  EXPECT_DOUBLE_EQ(spread_of(hundred_and_one).p95, 95);
  EXPECT_DOUBLE_EQ(spread_of({7}).p99, 7);
  EXPECT_EQ(spread_of({}).count, 0);
}

}  // namespace
}  // namespace kvant::load
