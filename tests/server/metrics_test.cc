#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvant::server {
namespace {

using testing::HasSubstr;

TEST(Metrics, ErrorsOfSealingByFormat) {
  Metrics metrics("m");
  metrics.sealing_error("int8/int4", {.layer = 0, .error = {0.25, 0.5}, .seconds = 0.125});
  metrics.sealing_error("int8/int4", {.layer = 1, .error = {0.5, 0.5}, .seconds = 0.125});
  const std::string text = metrics.text();
  const std::string labels = R"({format="int8/int4",model_name="m",of=)";
  EXPECT_THAT(text, HasSubstr("kvant:attention_error_count" + labels + "\"scores\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("kvant:attention_error_sum" + labels + "\"scores\"} 0.75\n"));
  EXPECT_THAT(text, HasSubstr("kvant:attention_error_sum" + labels + "\"outputs\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("kvant:attention_error_seconds_total{model_name=\"m\"} 0.25\n"));
}

}  // namespace
}  // namespace kvant::server
