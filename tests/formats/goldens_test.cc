// Formats against implementations that aren't ours (tools/make_format_goldens.py), and pages
// against their own history.
#include <algorithm>
#include <bit>
#include <fstream>
#include <map>
#include <sstream>

#include "codec_helpers.h"
#include "formats/fp4_types.h"
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
  for (const float huge : {448.0f, 449.0f, 464.0f, 465.0f, 1e9f, 3.4e38f, INFINITY}) {
    EXPECT_EQ(E4m3::encode(huge), 0x7e);
    EXPECT_EQ(E4m3::encode(-huge), 0xfe);
  }
  for (const float huge : {57344.0f, 57345.0f, 61439.0f, 61440.0f, 3.4e38f, INFINITY}) {
    EXPECT_EQ(E5m2::encode(huge), 0x7b);
    EXPECT_EQ(E5m2::encode(-huge), 0xfb);
  }
}

float float_of(const std::string& hex) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
}

TEST(FeatureF8_Fp4, CodesEqualMlDtypes) {
  std::ifstream file = open_data("fp4_codes.txt");
  int values = 0, inputs = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, type, first, second;
    words >> kind >> type >> first >> second;
    if (kind == "encode") {
      EXPECT_EQ(to_e2m1(float_of(first)), std::stoi(second)) << line;
      ++inputs;
    } else if (kind == "value") {
      const auto code = static_cast<uint8_t>(std::stoi(first));
      const float expected = float_of(second);
      const float value = type == "e2m1" ? kE2m1Values[code] : e8m0_to_f32(code);
      ++values;
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << line;
        continue;
      }
      EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << line;
      if (type == "e2m1") {
        EXPECT_EQ(int{kE2m1Levels[code]} - kE2m1Offset, static_cast<int>(2 * expected)) << line;
      } else if (code < 254) {  // the scale of a block whose largest is that power, or just less
        EXPECT_EQ(to_e8m0(expected, 0), code) << line;
        EXPECT_EQ(to_e8m0(expected, 2), std::max(code - 2, 0)) << line;
        EXPECT_EQ(to_e8m0(std::nextafter(expected, 0.0f), 0), std::max(code - 1, 0)) << line;
        EXPECT_EQ(e8m0_inverse(code) * expected, 1.0f) << line;
      }
    }
  }
  EXPECT_EQ(values, 16 + 256);
  EXPECT_GT(inputs, 300);
}

// Whole rows: scales, elements and their product, to the bit, where no float32 scale is searched.
TEST(FeatureF8_BlockFloats, RowsEqualMlDtypes) {
  const Rows x = read_tensor("tensor.txt");
  std::ifstream file = open_data("block_floats.txt");
  std::map<std::string, Rows> decoded;  // both sides
  int rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string format;
    size_t row = 0;
    words >> format >> row;
    ++rows;
    for (const Side side : kSides) {
      Rows& ours = decoded[format + std::string(side_name(side))];
      if (ours.empty()) {
        const Bound bound{nullptr, side, 128, *bind_for_test(**find_format(format), side, 128)};
        ours = bound.round_trip(x);
      }
    }
    const size_t first = (6 + row) * 128;  // make_format_goldens.py takes tokens 6 to 11
    for (size_t i = 0; i < 128; ++i) {
      float expected = 0;
      words >> expected;
      EXPECT_EQ(decoded[format + "K"][first + i], expected) << format << " row " << row;
      EXPECT_EQ(decoded[format + "V"][first + i], expected) << format << " row " << row;
    }
  }
  EXPECT_EQ(rows, 4 * 6);
}

// The float32 scale of NVFP4: a given one, and one a page that puts the largest value on 6·448.
TEST(FeatureF8_Nvfp4, TheTensorScaleMovesTheBlockScales) {
  const Rows x = gaussian_rows(64, kTestSeed);
  const auto decoded = [](const std::string& name, float scale, const Rows& rows) {
    const CodecArtifacts artifacts{.tensor_scale = scale, .tensor = {}};
    CodecBinding binding;
    binding.dim = 64;
    binding.artifacts = &artifacts;
    const Bound bound{nullptr, Side::kKey, 64, *bind_codec(**find_format(name), binding)};
    return bound.round_trip(rows);
  };
  EXPECT_EQ(decoded("nvfp4_tensor", 1.0f, x), decoded("nvfp4", 0, x));
  Rows small = x, large = x;
  for (float& v : small) v *= 0x1p-12f;
  for (float& v : large) v *= 0x1p12f;
  Rows back = decoded("nvfp4_tensor", 0x1p-12f, small);
  for (float& v : back) v *= 0x1p12f;
  EXPECT_EQ(back, decoded("nvfp4", 0, x)) << "a scale for the tensor is a change of unit";
  // Without it, scales of small and large rows leave E4M3; one of the page fits both.
  EXPECT_LT(sqnr_db(small, decoded("nvfp4", 0, small)), 15);
  EXPECT_LT(sqnr_db(large, decoded("nvfp4", 0, large)), 10);
  for (const Rows& rows : {small, x, large})
    EXPECT_NEAR(sqnr_db(rows, decoded("nvfp4_head", 0, rows)), 20.45, 0.3);
}

// Theirs keep float32 scales and zero points, ours binary16: a value moves by the rounding of its
// group's two numbers, or by one step where that rounding carries it over a tie.
struct Agreement {
  double equal = 0;  // share of values that differ by rounding only
  double worst_steps = 0;
};

// The places of the test tensor that share a grid.
using Runs = std::vector<std::vector<size_t>>;
constexpr size_t kTensorDim = 128;
Runs token_groups(size_t group) {
  Runs runs(kPageTokens * kTensorDim / group);
  for (size_t i = 0; i < kPageTokens * kTensorDim; ++i) runs[i / group].push_back(i);
  return runs;
}
Runs channels() {
  Runs runs(kTensorDim);
  for (size_t i = 0; i < kPageTokens * kTensorDim; ++i) runs[i % kTensorDim].push_back(i);
  return runs;
}

Agreement compare(const std::string& format, Side side, const Rows& theirs, const Runs& runs,
                  int levels) {
  const Rows x = read_tensor("tensor.txt");
  auto codec = bind_for_test(**find_format(format), side, kTensorDim);
  const Bound bound{nullptr, side, kTensorDim, std::move(codec).value()};
  const Rows ours = bound.round_trip(x);
  Agreement agreement;
  for (const std::vector<size_t>& run : runs) {
    float low = x[run[0]], high = x[run[0]];
    for (const size_t i : run) {
      low = std::min(low, x[i]);
      high = std::max(high, x[i]);
    }
    const float step = (high - low) / static_cast<float>(levels);
    const float rounding = std::max(std::fabs(low), std::fabs(high)) * 0x1p-10f;
    for (const size_t i : run) {
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

// The finer the grid, the more values lie where the rounding of a zero point carries them to the
// neighbouring code: 3 % at 8 bits.
void expect_equal_to_rounding(const std::string& format, const Agreement& agreement, int levels) {
  EXPECT_GE(agreement.equal, levels < 255 ? 0.99 : 0.96) << format;
  EXPECT_LE(agreement.worst_steps, 1.0) << format;
}

TEST(FeatureF7_QuantizedCache, GroupsEqualQuanto) {
  for (const auto& [format, golden, levels] :
       {std::tuple{"int4_g64_z", "quanto4_g64.txt", 15}, {"int2_g64_z", "quanto2_g64.txt", 3}}) {
    expect_equal_to_rounding(
        format, compare(format, Side::kValue, read_tensor(golden), token_groups(64), levels),
        levels);
  }
}

TEST(FeatureF7_QuantizedCache, GroupsEqualHqq) {
  for (const auto& [format, golden, levels] :
       {std::tuple{"int4_g64_z_hqq", "hqq4_g64.txt", 15}, {"int2_g64_z_hqq", "hqq2_g64.txt", 3}}) {
    expect_equal_to_rounding(
        format, compare(format, Side::kValue, read_tensor(golden), token_groups(64), levels),
        levels);
  }
}

// Rows turned by Sylvester's matrix, which is its own inverse.
Rows hadamard(const Rows& rows, size_t dim) {
  Rows out(rows.size());
  for (size_t r = 0; r < rows.size() / dim; ++r) {
    for (size_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (size_t j = 0; j < dim; ++j) {
        const double x = static_cast<double>(rows[r * dim + j]);
        sum += std::popcount(i & j) % 2 == 0 ? x : -x;
      }
      out[r * dim + i] = static_cast<float>(sum / std::sqrt(static_cast<double>(dim)));
    }
  }
  return out;
}

// The published formulas in logarithms and double against ours. Codes are theirs but for values
// near a tie, which the rounding of binary16 metadata may carry over it: one step.
TEST(FeatureF11_Kvarn, RowsEqualThePublishedFormula) {
  const Rows x = read_tensor("tensor.txt");
  Rows uneven = x;  // for V: channels that differ in size once they are rotated
  for (size_t i = 0; i < x.size(); ++i) uneven[i] *= static_cast<float>(1 << (i % kTensorDim % 5));
  std::ifstream file = open_data("kvarn.txt");
  std::map<std::string, Rows> turned;
  std::map<std::string, Agreement> agreements;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string side, bits;
    size_t row = 0;
    words >> side >> bits >> row;
    Rows& ours = turned[side + bits];
    if (ours.empty()) {
      const Side s = side == "K" ? Side::kKey : Side::kValue;
      const FormatInfo& info = **find_format("kvarn" + bits);
      const Bound bound{nullptr, s, kTensorDim, *bind_for_test(info, s, kTensorDim)};
      ours = hadamard(bound.round_trip(s == Side::kKey ? x : hadamard(uneven, kTensorDim)),
                      kTensorDim);
    }
    Rows theirs(kTensorDim);
    for (float& v : theirs) words >> v;
    const auto [low, high] = std::minmax_element(theirs.begin(), theirs.end());
    Agreement& agreement = agreements[side + bits];
    for (size_t i = 0; i < kTensorDim; ++i) {
      const double difference = std::fabs(ours[(6 + row) * kTensorDim + i] - theirs[i]);
      const double spread = static_cast<double>(*high - *low);
      if (difference <= 0x1p-9 * spread) agreement.equal += 1.0 / (6 * kTensorDim);
      agreement.worst_steps = std::max(agreement.worst_steps, difference / spread);
    }
  }
  EXPECT_EQ(agreements.size(), 6u);
  for (const auto& [name, agreement] : agreements) {
    EXPECT_GE(agreement.equal, 0.98) << name;
    EXPECT_LE(agreement.worst_steps, name[1] == '4' ? 0.15 : name[1] == '3' ? 0.25 : 0.5) << name;
  }
}

// KIVI's published formula, in double: code = round((x - min) / s) with s = (max - min) / (2^b -
// 1), keys over a channel's tokens and values over a token's channels.
Rows kivi(const Rows& x, const Runs& runs, int levels) {
  Rows out(x.size());
  for (const std::vector<size_t>& run : runs) {
    double low = double{x[run[0]]}, high = low;
    for (const size_t i : run) {
      low = std::min(low, double{x[i]});
      high = std::max(high, double{x[i]});
    }
    const double step = (high - low) / levels;
    for (const size_t i : run)
      out[i] = step == 0 ? x[i]
                         : static_cast<float>(low + step * std::round((double{x[i]} - low) / step));
  }
  return out;
}

TEST(FeatureF6_Kivi, ValuesEqualThePublishedFormula) {
  const Rows x = read_tensor("tensor.txt");
  for (const int bits : {2, 3, 4, 8}) {
    const std::string name = "int" + std::to_string(bits);
    const int levels = (1 << bits) - 1;
    for (const auto& [format, side, runs] :
         {std::tuple{name + "_channel_z", Side::kKey, channels()},
          {name + "_token_z", Side::kValue, token_groups(kTensorDim)},
          {name + "_g32_z", Side::kValue, token_groups(32)},
          {name + "_g64_z", Side::kKey, token_groups(64)}}) {
      expect_equal_to_rounding(format, compare(format, side, kivi(x, runs, levels), runs, levels),
                               levels);
    }
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
  const auto compare = [&](const Bound& bound) {
    char text[17];
    std::snprintf(
        text, sizeof text, "%016llx",
        static_cast<unsigned long long>(hash_bytes(bound.encode(portable_rows(bound.dim)))));
    const std::string key = bound.definition->info.name + " " + std::string(side_name(bound.side)) +
                            " " + std::to_string(bound.dim);
    const auto found = known.find(key);
    if (found != known.end()) {
      EXPECT_EQ(found->second, text);
      known.erase(found);
    } else {
      added += key + " " + text + "\n";
    }
  };
  for (const FormatDefinition& definition : all_definitions())
    for_codecs_of(definition, kDims, compare);
  for (const auto& [key, hash] : known) ADD_FAILURE() << key << " is no longer a format";
  if (added.empty()) return;
  if (std::getenv("KVANT_UPDATE_GOLDENS") == nullptr) {
    FAIL() << "formats without a golden hash (run once with KVANT_UPDATE_GOLDENS=1):\n" << added;
  }
  std::ofstream(data_path("page_hashes.txt"), std::ios::app) << added;
}

}  // namespace
}  // namespace kvant
