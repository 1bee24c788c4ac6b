#include "kvant/status.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0)
    return invalid_argument("n: " + std::to_string(n) + " is odd, wanted an even number");
  return n / 2;
}
Status quarter(int n, int* out) {
  KVANT_ASSIGN(const int h, half(n));
  KVANT_ASSIGN(*out, half(h));
  return {};
}

TEST(Status, PassesValuesAndStopsAtTheFirstFailure) {
  int out = 0;
  EXPECT_TRUE(quarter(12, &out).ok());
  EXPECT_EQ(out, 3);
  const Status failed = quarter(6, &out);
  EXPECT_EQ(failed.code(), Code::kInvalidArgument);
  EXPECT_EQ(failed.message(), "n: 3 is odd, wanted an even number");
  EXPECT_EQ(failed.with_context("quarter").message(),
            "quarter: n: 3 is odd, wanted an even number");
  EXPECT_EQ(exit_code(failed.code()), 2);
}

}  // namespace
}  // namespace kvant
