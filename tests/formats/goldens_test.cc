// Formats against implementations that aren't ours (tools/make_format_goldens.py), and pages
// against their own history.
#include <algorithm>
#include <bit>
#include <fstream>
#include <map>
#include <sstream>

#include "codec_helpers.h"
#include "formats/fp8_types.h"

namespace kvant {
namespace {

std::string data_path(const std::string& name) {
  return std::string(KVANT_TEST_DATA) + "/formats/" + name;
}

std::ifstream open_data(const std::string& name) {
  std::ifstream file(data_path(name));
  EXPECT_TRUE(file.good()) << data_path(name);
  return file;
}

Rows read_tensor(const std::string& name) {
  std::ifstream file = open_data(name);
  Rows rows;
  for (float x; file >> x;) rows.push_back(x);
  EXPECT_EQ(rows.size(), 64u * 128u) << name;
  return rows;
}

TEST(CaseB5_Fp8, CodesEqualMlDtypes) {
  std::ifstream file = open_data("fp8_codes.txt");
  int values = 0;
  int inputs = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, type, first, second;
    words >> kind >> type >> first >> second;
    const bool e4m3 = type == "e4m3";
    if (kind == "value") {
      const auto code = static_cast<uint8_t>(std::stoi(first));
      const float expected =
          std::bit_cast<float>(static_cast<uint32_t>(std::stoul(second, nullptr, 16)));
      const float value = e4m3 ? e4m3_to_f32(code) : e5m2_to_f32(code);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << line;
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << line;
      }
      ++values;
    } else if (kind == "encode") {
      const float input =
          std::bit_cast<float>(static_cast<uint32_t>(std::stoul(first, nullptr, 16)));
      EXPECT_EQ(e4m3 ? E4m3::encode(input) : E5m2::encode(input), std::stoi(second)) << line;
      ++inputs;
    }
  }
  EXPECT_EQ(values, 512);
  EXPECT_GT(inputs, 1000);
}

TEST(CaseB5_Fp8, EveryFiniteCodeComesBackAndNoNumberBecomesNaN) {
  for (int code = 0; code < 256; ++code) {
    const float e4m3 = e4m3_to_f32(static_cast<uint8_t>(code));
    const float e5m2 = e5m2_to_f32(static_cast<uint8_t>(code));
    if (std::isfinite(e4m3)) {
      EXPECT_EQ(E4m3::encode(e4m3), code);
    }
    if (std::isfinite(e5m2)) {
      EXPECT_EQ(E5m2::encode(e5m2), code);
    }
  }
  for (const float huge : {448.0f, 449.0f, 465.0f, 1e9f, 3.4e38f, INFINITY}) {
    EXPECT_EQ(E4m3::encode(huge), 0x7e);
    EXPECT_EQ(E4m3::encode(-huge), 0xfe);
  }
  for (const float huge : {57344.0f, 57345.0f, 61440.0f, 3.4e38f, INFINITY}) {
    EXPECT_EQ(E5m2::encode(huge), 0x7b);
    EXPECT_EQ(E5m2::encode(-huge), 0xfb);
  }
}

// Theirs keep float32 scales and zero points, ours binary16: a value moves by the rounding of its
// group's two numbers, or by one step where that rounding carries it over a tie.
struct Agreement {
  double equal = 0;  // share of values that differ by rounding only
  double worst_steps = 0;
};

Agreement compare(const std::string& format, const std::string& golden, int levels) {
  const Rows x = read_tensor("tensor.txt");
  const Rows theirs = read_tensor(golden);
  auto codec = bind_for_test(**find_format(format), Side::kValue, 128);
  const Bound bound{nullptr, Side::kValue, 128, std::move(codec).value()};
  const Rows ours = bound.round_trip(x);
  Agreement agreement;
  for (size_t g = 0; g < x.size(); g += 64) {
    const auto group = x.begin() + static_cast<std::ptrdiff_t>(g);
    const auto [low, high] = std::minmax_element(group, group + 64);
    const float step = (*high - *low) / static_cast<float>(levels);
    const float rounding = std::max(std::fabs(*low), std::fabs(*high)) * 0x1p-10f;
    for (size_t i = g; i < g + 64; ++i) {
      const float difference = std::fabs(ours[i] - theirs[i]);
      if (difference <= rounding) {
        agreement.equal += 1.0 / static_cast<double>(x.size());
      } else {
        agreement.worst_steps =
            std::max(agreement.worst_steps, static_cast<double>((difference - rounding) / step));
      }
    }
  }
  return agreement;
}

TEST(FeatureF7_QuantizedCache, GroupsEqualQuanto) {
  for (const auto& [format, golden, levels] :
       {std::tuple{"int4_g64_z", "quanto4_g64.txt", 15}, {"int2_g64_z", "quanto2_g64.txt", 3}}) {
    const Agreement agreement = compare(format, golden, levels);
    EXPECT_GE(agreement.equal, 0.99) << format;
    EXPECT_LE(agreement.worst_steps, 1.0) << format;
  }
}

TEST(FeatureF7_QuantizedCache, GroupsEqualHqq) {
  for (const auto& [format, golden, levels] :
       {std::tuple{"int4_g64_z_hqq", "hqq4_g64.txt", 15}, {"int2_g64_z_hqq", "hqq2_g64.txt", 3}}) {
    const Agreement agreement = compare(format, golden, levels);
    EXPECT_GE(agreement.equal, 0.99) << format;
    EXPECT_LE(agreement.worst_steps, 1.0) << format;
  }
}

// FNV-1a, 64 bits.
uint64_t hash_bytes(const AlignedArray<std::byte>& bytes) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < bytes.size(); ++i) {
    hash = (hash ^ std::to_integer<uint64_t>(bytes[i])) * 0x100000001b3ull;
  }
  return hash;
}

// Rows that no library's cosine or logarithm had a hand in: sums of uniform numbers, a channel with
// an offset and a token with a scale of its own.
Rows portable_rows(int dim) {
  Rng rng(kTestSeed);
  Rows rows(static_cast<size_t>(kPageTokens * dim));
  for (size_t i = 0; i < rows.size(); ++i) {
    float sum = -2.0f;
    for (int k = 0; k < 4; ++k) sum += static_cast<float>(rng.below(1 << 20)) * 0x1p-20f;
    rows[i] = sum * (i / static_cast<size_t>(dim) == 11 ? 6.0f : 1.5f) +
              (i % static_cast<size_t>(dim) == 5 ? 9.0f : 0.0f);
  }
  return rows;
}

// Stored pages outlive programs: the bytes of a format never change. A format with other bytes is
// another format and has another name. KVANT_UPDATE_GOLDENS=1 adds the lines of new formats; it
// never changes one.
TEST(PageBytes, NeverChange) {
  std::map<std::string, std::string> known;
  {
    std::ifstream file = open_data("page_hashes.txt");
    for (std::string line; std::getline(file, line);) {
      const size_t space = line.rfind(' ');
      if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
      known[line.substr(0, space)] = line.substr(space + 1);
    }
  }
  std::string added;
  constexpr int kDims[] = {64, 80, 128, 256};
  for_every_codec(
      [&](const Bound& bound) {
        char text[17];
        std::snprintf(
            text, sizeof text, "%016llx",
            static_cast<unsigned long long>(hash_bytes(bound.encode(portable_rows(bound.dim)))));
        const std::string key = bound.definition->info.name + " " +
                                std::string(side_name(bound.side)) + " " +
                                std::to_string(bound.dim);
        const auto found = known.find(key);
        if (found != known.end()) {
          EXPECT_EQ(found->second, text);
          known.erase(found);
        } else {
          added += key + " " + text + "\n";
        }
      },
      kDims);
  for (const auto& [key, hash] : known) ADD_FAILURE() << key << " is no longer a format";
  if (added.empty()) return;
  if (std::getenv("KVANT_UPDATE_GOLDENS") == nullptr) {
    FAIL() << "formats without a golden hash (run once with KVANT_UPDATE_GOLDENS=1):\n" << added;
  }
  std::ofstream(data_path("page_hashes.txt"), std::ios::app) << added;
}

}  // namespace
}  // namespace kvant
