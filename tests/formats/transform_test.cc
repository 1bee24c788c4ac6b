// Transform coding: what an artifact may say, and that its two matrices belong together.
#include <gmock/gmock.h>

#include "codec_helpers.h"

namespace kvant {
namespace {

constexpr int kDim = 64;
constexpr auto kD = static_cast<size_t>(kDim);

const FormatInfo& tc(int bits) { return **find_format("tc" + std::to_string(bits)); }

// A = L·S with unit lower triangle L and scales S, whose inverse is exact enough in double.
std::vector<float> artifact(const std::vector<int>& bits) {
  Rng rng(3);
  std::vector<double> a(kD * kD, 0), inverse(kD * kD, 0);
  for (size_t i = 0; i < kD; ++i) {
    for (size_t j = 0; j < i; ++j) a[i * kD + j] = (static_cast<double>(rng.below(100)) - 50) / 500;
    a[i * kD + i] = 1;
  }
  for (size_t c = 0; c < kD; ++c) {  // forward substitution of L·x = e_c
    for (size_t i = c; i < kD; ++i) {
      double x = i == c ? 1 : 0;
      for (size_t j = c; j < i; ++j) x -= a[i * kD + j] * inverse[j * kD + c];
      inverse[i * kD + c] = x;
    }
  }
  std::vector<float> out;
  const auto scale = [](size_t i) { return std::pow(1.02, static_cast<double>(i)); };
  for (size_t i = 0; i < kD; ++i) {
    for (size_t j = 0; j < kD; ++j) out.push_back(static_cast<float>(a[i * kD + j] * scale(j)));
  }
  for (size_t i = 0; i < kD; ++i) {  // the transpose of S^-1·L^-1
    for (size_t j = 0; j < kD; ++j)
      out.push_back(static_cast<float>(inverse[j * kD + i] / scale(j)));
  }
  for (const int b : bits) out.push_back(static_cast<float>(b));
  return out;
}

std::vector<int> sections(std::initializer_list<int> bits) {
  std::vector<int> out;
  for (const int b : bits) out.insert(out.end(), 16, b);
  return out;
}

Result<std::unique_ptr<Codec>> bind(int bits, std::span<const float> tensor) {
  const CodecArtifacts artifacts{.tensor = tensor};
  CodecBinding binding;
  binding.dim = kDim;
  binding.artifacts = &artifacts;
  return bind_codec(tc(bits), binding);
}

// Queries see the page as it decodes, whatever the bits of its sections.
TEST(Transform, ScoresAreThoseOfTheDecodedRows) {
  for (const auto& [mean, widths] : {std::pair{4, sections({6, 4, 4, 2})},
                                     {4, sections({8, 6, 1, 1})},
                                     {3, sections({4, 4, 2, 2})},
                                     {3, sections({5, 5, 1, 1})},
                                     {2, sections({4, 2, 1, 1})}}) {
    const std::vector<float> tensor = artifact(widths);
    const auto bound = bind(mean, tensor);
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    const Codec& codec = **bound;
    EXPECT_EQ(codec.page_bytes(), kD * (static_cast<size_t>(mean) * 8 + 4));
    const Rows rows = gaussian_rows(kDim, 11), queries = gaussian_rows(kDim, 12);
    AlignedArray<std::byte> page(codec.page_bytes());
    PageInput input;
    input.rows = rows.data();
    codec.encode(input, page.data());
    Rows decoded(kPageTokens * kD);
    codec.decode(page.data(), decoded.data());
    constexpr int kQueries = 70;  // more than fit on the stack
    Rows many;
    for (int q = 0; q < kQueries; ++q)
      many.insert(many.end(), queries.begin() + (q % 64) * kDim,
                  queries.begin() + (q % 64 + 1) * kDim);
    AlignedArray<std::byte> prepared(codec.query_bytes(kQueries));
    codec.prepare_query(many.data(), kQueries, prepared.data());
    std::vector<float> scores(kQueries * kPageTokens);
    codec.scores(page.data(), prepared.data(), kQueries, 0, scores.data(), kPageTokens);
    for (size_t q = 0; q < kQueries; ++q) {
      for (size_t t = 0; t < kPageTokens; ++t) {
        double want = 0, size = 0;
        for (size_t i = 0; i < kD; ++i) {
          const double product = double{many[q * kD + i]} * double{decoded[t * kD + i]};
          want += product;
          size += std::fabs(product);
        }
        // Sections of up to 4 bits take queries of 1/36 steps.
        ASSERT_NEAR(scores[q * kPageTokens + t], want, 1e-2 * size) << mean << " bits";
      }
    }
  }
}

// At many bits the rows come back: the second matrix is the first one's inverse, transposed.
TEST(Transform, RowsComeBack) {
  const std::vector<float> tensor = artifact(sections({4, 4, 4, 4}));
  const auto codec = bind(4, tensor);
  ASSERT_TRUE(codec.ok()) << codec.status().message();
  const Rows rows = gaussian_rows(kDim, 11);
  AlignedArray<std::byte> page((*codec)->page_bytes());
  PageInput input;
  input.rows = rows.data();
  (*codec)->encode(input, page.data());
  Rows back(kPageTokens * kD);
  (*codec)->decode(page.data(), back.data());
  double error = 0, size = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    error += std::pow(double{back[i]} - double{rows[i]}, 2);
    size += std::pow(double{rows[i]}, 2);
  }
  EXPECT_LT(error / size, 0.05);
  EXPECT_GT(error / size, 1e-4) << "too good";
}

TEST(Transform, AnArtifactThatCantBeIsRefusedByWhatIsWrongWithIt) {
  const std::vector<float> good = artifact(sections({6, 4, 4, 2}));
  const auto message = [](int bits, const std::vector<float>& tensor) {
    const auto codec = bind(bits, tensor);
    return codec.ok() ? std::string("taken") : codec.status().message();
  };
  EXPECT_EQ(message(4, good), "taken");
  EXPECT_THAT(message(4, {}), testing::HasSubstr("needs a calibrated transform"));
  EXPECT_THAT(message(3, good), testing::HasSubstr("spends 256 bits a token, wanted 192"));
  std::vector<float> bad = good;
  bad.pop_back();
  EXPECT_THAT(message(4, bad), testing::HasSubstr("8255 numbers, wanted 8256"));
  bad = good;
  bad[17] = NAN;
  EXPECT_THAT(message(4, bad), testing::HasSubstr("isn't finite"));
  for (const auto& widths : {sections({4, 6, 4, 2}), sections({7, 4, 3, 2}), sections({6, 4, 3, 3}),
                             sections({6, 5, 4, 1}), sections({8, 8, 0, 0})}) {
    const std::string said = message(4, artifact(widths));
    const bool is_whole = widths == sections({6, 4, 3, 3});
    EXPECT_EQ(said == "taken", is_whole) << said;
  }
  bad = good;
  bad.back() = 2.5f;
  EXPECT_THAT(message(4, bad), testing::HasSubstr("falling, in sections of 16"));
}

// A balanced page is the page of plain integers of the rows in another basis, and reads like it.
TEST(Transform, ABalancedPageIsAPlainOneOfRowsInItsBasis) {
  for (const int bits : {8, 4, 3, 2}) {
    const std::vector<float> tensor = artifact(std::vector<int>(kD, bits));
    const CodecArtifacts artifacts{.tensor = tensor};
    CodecBinding binding;
    binding.dim = kDim;
    binding.artifacts = &artifacts;
    const auto codec = bind_codec(**find_format("bal" + std::to_string(bits)), binding);
    ASSERT_TRUE(codec.ok()) << codec.status().message();
    const std::string plain = "int" + std::to_string(bits) + "_channel_z";
    const auto inner = bind_for_test(**find_format(plain), Side::kKey, kDim);
    const Rows rows = gaussian_rows(kDim, 11);
    Rows turned(rows.size(), 0.0f);
    for (size_t t = 0; t < kPageTokens; ++t) {
      for (size_t j = 0; j < kD; ++j) {
        for (size_t i = 0; i < kD; ++i) turned[t * kD + i] += rows[t * kD + j] * tensor[i * kD + j];
      }
    }
    AlignedArray<std::byte> page((*codec)->page_bytes()), want((*inner)->page_bytes());
    PageInput input;
    input.rows = rows.data();
    (*codec)->encode(input, page.data());
    input.rows = turned.data();
    (*inner)->encode(input, want.data());
    ASSERT_EQ(page.size(), want.size());
    EXPECT_EQ(std::memcmp(page.data(), want.data(), page.size()), 0) << bits;
  }
}

TEST(Transform, ABalancedFormatHasItsBitsInEveryChannel) {
  const std::vector<float> tensor = artifact(sections({6, 4, 4, 2}));
  const CodecArtifacts artifacts{.tensor = tensor};
  CodecBinding binding;
  binding.dim = kDim;
  binding.artifacts = &artifacts;
  const auto codec = bind_codec(**find_format("bal4"), binding);
  ASSERT_FALSE(codec.ok());
  EXPECT_THAT(codec.status().message(), testing::HasSubstr("gives channel 0 6 bits, wanted 4"));
}

}  // namespace
}  // namespace kvant
