// kvant plan --explain: every calculation in it is redone here, as a reader would on paper.
#include <gmock/gmock.h>

#include <cctype>
#include <cmath>
#include <regex>
#include <sstream>

#include "plan_runs.h"

namespace kvant::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A sum of products with parentheses; words are units and left out.
class Calculation {
 public:
  explicit Calculation(const std::string& text) : text_(without_words(text)) {}

  double value() {
    const double result = sum();
    EXPECT_EQ(at_, text_.size()) << text_;
    return result;
  }

 private:
  static std::string without_words(const std::string& text) {
    std::string plain = std::regex_replace(text, std::regex("×"), "*");
    plain = std::regex_replace(plain, std::regex("[A-Za-z_][A-Za-z0-9_/]*"), "");
    return std::regex_replace(plain, std::regex("\\s+"), "");
  }
  bool takes(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  double sum() {
    double result = product();
    while (true) {
      if (takes('+')) {
        result += product();
      } else if (takes('-')) {
        result -= product();
      } else {
        return result;
      }
    }
  }
  double product() {
    double result = factor();
    while (true) {
      if (takes('*')) {
        result *= factor();
      } else if (takes('/')) {
        result /= factor();
      } else {
        return result;
      }
    }
  }
  double factor() {
    if (takes('(')) {
      const double result = sum();
      EXPECT_TRUE(takes(')')) << text_;
      return result;
    }
    size_t length = 0;
    double number = 0;
    EXPECT_TRUE(at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])))
        << text_ << " at " << at_;
    if (at_ < text_.size()) number = std::stod(text_.substr(at_), &length);
    at_ += std::max<size_t>(length, 1);
    return number;
  }

  std::string text_;
  size_t at_ = 0;
};

// Checks all calculations of an explanation; how many there are.
int redo(const std::string& text) {
  static const std::regex kEquation("([^:;,=]+) = (-?[0-9.]+)");
  int count = 0;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    for (std::sregex_iterator at(line.begin(), line.end(), kEquation), end; at != end; ++at) {
      const double said = std::stod((*at)[2]);
      // A device's share of the weights is rounded up.
      EXPECT_NEAR(Calculation((*at)[1]).value(), said, std::max(1.0, std::abs(said)) * 2e-6)
          << line;
      EXPECT_NE((*at)[1].str(), (*at)[2].str()) << "says nothing: " << line;
      ++count;
    }
  }
  return count;
}

// What the last line that begins so gives.
double figure(const std::string& text, const std::string& start) {
  const size_t at = text.rfind("\n  " + start);
  EXPECT_NE(at, text.npos) << start << "\n" << text;
  if (at == text.npos) return 0;
  const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  const size_t equal = line.rfind("= ");
  return std::stod(line.substr(equal == line.npos ? line.find(": ") + 2 : equal + 2));
}

std::string explained(const std::string& model, Words words, const std::string& format) {
  words.push_back("--explain");
  const std::string out = plan(model, words).out;
  const size_t at = out.find("\n" + format + ": ");
  EXPECT_NE(at, out.npos) << out;
  return at == out.npos ? "" : out.substr(at);
}

TEST(PlanExplain, CanBeRedoneOnPaper) {
  const std::vector<std::pair<std::string, Words>> kPlans = {
      {"llama-3.1-8b", {}},
      {"gemma-3-1b", {"--batch", "5"}},
      {"llama-3.1-8b", {"--batch", "3", "--beams", "2", "--shared-prefix", "1000"}},
      {"deepseek-v3.2", {"--exact-window", "128"}},
      {"deepseek-v4-flash", {"--batch", "2"}},
      {"llama-3.2-11b-vision", {"--source-tokens", "6404"}},
      {"zamba2-7b", {"--batch", "2", "--sinks", "0"}},
      {"llama-3.1-8b", {"--tp", "16", "--pp", "3", "--cp", "2", "--batch", "3"}},
      {"gemma-3-1b", {"--cp", "3"}}};
  for (const auto& [name, options] : kPlans) {
    for (const char* format : {"bf16", "int4", "k8v4"}) {
      Words words = {"--kv", format, "--tokens", "5000"};
      words.insert(words.end(), options.begin(), options.end());
      const json row = plan_json(published(name), words)["rows"][0];
      const std::string text = explained(published(name), words, format);
      EXPECT_GT(redo(text), 3) << text;
      const bool several = text.find("devices:") != text.npos;
      EXPECT_EQ(figure(text, several ? "K and V on all " : "K and V: "), row["kv_bytes"]) << text;
      EXPECT_NEAR(figure(text, "effective bits: "), row["effective_bits"], 1e-6) << text;
      if (!several) {
        EXPECT_EQ(figure(text, "needed, "), row["needed_bytes"]) << text;
      }
      EXPECT_THAT(text, Not(HasSubstr("+ 0 ")));
    }
  }
}

TEST(PlanExplain, SaysWhyPagesAreExact) {
  const std::string text = explained(
      published("llama-3.1-8b"),
      {"--kv", "int8", "--tokens", "5000", "--sinks", "128", "--exact-window", "192"}, "int8");
  EXPECT_THAT(text, HasSubstr("exact: 2 sinks, 3 in the exact window, the open one"));
  EXPECT_THAT(text, HasSubstr("8.125 bits a value"));
  EXPECT_THAT(explained(published("gemma-3-1b"), {"--kv", "int4", "--tokens", "5000"}, "int4"),
              HasSubstr("exact: the open one"));
}

TEST(PlanExplain, MemoryAddsUp) {
  for (const Words& options :
       {Words{}, {"--tp", "2"}, {"--pp", "3"}, {"--tp", "4", "--pp", "5", "--cp", "2"}}) {
    Words words = {"--kv", "int4",        "--tokens", "5000",         "--device-memory",
                   "24G",  "--workspace", "1G",       "--activation", "100M"};
    words.insert(words.end(), options.begin(), options.end());
    const json row = plan_json(published("llama-3.1-8b"), words)["rows"][0];
    const std::string text = explained(published("llama-3.1-8b"), words, "int4");
    redo(text);
    EXPECT_EQ(figure(text, "left for the cache: "), row["available_bytes"]) << text;
    EXPECT_EQ(figure(text, "free: "), row["spare_bytes"]) << text;
  }
}

TEST(PlanExplain, AWorkloadsGainIsTheFormulaWithItsNumbers) {
  const Words kLoad = {"--device-memory", "24G",    "--prompt",      "2k:8k",
                       "--output",        "300:1k", "--kv",          "bf16,int8,int4",
                       "--tokens",        "4k",     "--concurrency", "16"};
  const std::string text = explained(published("llama-3.1-8b"), kLoad, "bf16");
  redo(text);
  const json row = plan_json(published("llama-3.1-8b"), kLoad)["workload"][2];
  EXPECT_NEAR(figure(text, "share of the cache in bf16: "), row["cache_share"], 1e-6);
  EXPECT_NEAR(figure(text, "compression: "), row["compression"], 1e-6);
  EXPECT_NEAR(figure(text, "gain: "), row["expected_gain"], 1e-6);
  EXPECT_NEAR(figure(text, "exact gain: "), row["exact_gain"], 1e-6);
}

}  // namespace
}  // namespace kvant::cli
