#include "cli/load_plan.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "cli/output.h"

namespace kvant::cli {
namespace {

// The whole text as a number.
template <typename T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<std::vector<load::Level>> read_levels(const Settings& s) {
  std::vector<load::Level> levels;
  if (s.find_max) return levels;
  if (s.is_given("rate")) {
    for (const std::string& item : split_items(s.rates)) {
      const std::optional<double> rate = number<double>(item);
      if (!rate || !(*rate > 0) || *rate > 1e6) {
        return invalid_argument(
            fmt::format("--rate {}: \"{}\"; wanted requests a second, up to 1e6", s.rates, item));
      }
      levels.push_back({.concurrency = 0, .rate = *rate});
    }
    return levels;
  }
  for (const std::string& item : split_items(s.concurrency_levels)) {
    const std::optional<int64_t> n = number<int64_t>(item);
    if (!n || *n < 1 || *n > 65536) {
      return invalid_argument(
          fmt::format("--concurrency {}: \"{}\"; wanted whole numbers from 1 "
                      "to 65536",
                      s.concurrency_levels, item));
    }
    levels.push_back({.concurrency = *n, .rate = 0});
  }
  return levels;
}

Result<std::vector<std::string>> read_matrix(const Settings& s) {
  constexpr std::string_view kKey = "kv=";
  if (!s.matrix.starts_with(kKey)) {
    return invalid_argument(
        fmt::format("--matrix {}: wanted kv= and formats by comma, as in kv=bf16,int8", s.matrix));
  }
  std::vector<std::string> formats = split_items(std::string_view(s.matrix).substr(kKey.size()));
  for (const std::string& format : formats) {
    if (!format.empty()) continue;
    return invalid_argument(
        fmt::format("--matrix {}: an item is empty; wanted kv=bf16,int8", s.matrix));
  }
  return formats;
}

// A key is what can stand in a header: one line, no blanks.
Result<std::string> read_key(const std::string& path) {
  KVANT_ASSIGN(std::string key, read_file(path));
  while (!key.empty() && std::string_view(" \t\r\n").find(key.back()) != std::string_view::npos)
    key.pop_back();
  for (char c : key) {
    if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f)
      return invalid_argument(
          fmt::format("{}: the key has a blank or an unprintable character in it", path));
  }
  if (key.empty()) return invalid_argument(fmt::format("{} is empty, wanted a key", path));
  return key;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t at = text.find_first_not_of(' '); at != text.npos;) {
    const size_t end = std::min(text.find(' ', at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = text.find_first_not_of(' ', end);
  }
  return words;
}

Status both(std::string_view a, std::string_view b, std::string_view why) {
  return invalid_argument(fmt::format("--{} and --{} were both given; {}", a, b, why));
}

// Options that contradict one another.
Status check_together(const Settings& s) {
  if (s.is_given("rate") && s.is_given("concurrency"))
    return both("rate", "concurrency", "wanted one of them");
  if (s.find_max) {
    for (const char* other : {"rate", "concurrency"}) {
      if (s.is_given(other)) return both("find-max", other, "the search chooses the concurrency");
    }
    if (!s.is_given("slo"))
      return invalid_argument(
          "--find-max has no limits to keep; wanted --slo, as in "
          "--slo ttft=2s,itl=100ms");
  } else if (s.is_given("max-concurrency")) {
    return invalid_argument("--max-concurrency is where --find-max ends; wanted it beside");
  }
  if (s.is_given("prompts")) {
    for (const char* other : {"input-len", "shared-prefix"}) {
      if (s.is_given(other)) return both("prompts", other, "prompts of a file are as they are");
    }
  }
  if (s.is_given("serve-options") && !s.is_given("matrix"))
    return invalid_argument("--serve-options are for the servers that --matrix starts");
  return {};
}

}  // namespace

Result<LoadPlan> plan_load(const Invocation& in) {
  const Settings& s = in.settings;
  KVANT_TRY(check_together(s));
  LoadPlan plan;
  if (s.is_given("matrix")) {
    KVANT_ASSIGN(plan.formats, read_matrix(s));
    if (in.model.find("://") != in.model.npos) {
      return invalid_argument(
          fmt::format("{}: --matrix starts the server itself; wanted a MODEL", in.model));
    }
  } else {
    KVANT_ASSIGN(plan.server.url, load::parse_url(in.model));
  }
  plan.serve_words = words_of(s.serve_options);
  plan.api = s.chat ? load::Api::kChat : load::Api::kCompletions;
  if (s.is_given("slo")) {
    KVANT_ASSIGN(plan.slo, load::parse_slo(s.slo));
    if (!plan.slo.any())
      return invalid_argument(
          fmt::format("--slo {}: no limit of a time; wanted one, as in ttft=2s", s.slo));
  }
  KVANT_ASSIGN(plan.levels, read_levels(s));
  if (!s.is_given("requests") || s.is_given("duration")) plan.duration_s = s.duration;
  for (const std::string& item : split_items(s.input_lengths)) {
    const Result<load::TokenRange> range = load::parse_range(item);
    if (!range.ok()) return range.status().with_context(fmt::format("--input-len {}", item));
    plan.inputs.push_back(*range);
  }
  const Result<load::TokenRange> output = load::parse_range(s.output_lengths);
  if (!output.ok())
    return output.status().with_context(fmt::format("--output-len {}", s.output_lengths));
  plan.output = *output;
  if (!s.api_key_file.empty()) {
    KVANT_ASSIGN(plan.server.api_key, read_key(s.api_key_file));
  }
  if (!s.prompts_file.empty()) {
    KVANT_ASSIGN(const std::string text, read_file(s.prompts_file));
    KVANT_ASSIGN(plan.prompts,
                 load::parse_prompts(text, s.prompts_file,
                                     s.chat ? load::Messages::kAllowed : load::Messages::kRefused));
    plan.inputs.resize(1);
  }
  if (!s.tokenizer.empty()) {
    KVANT_ASSIGN(plan.tokenizer, open_tokenizer(s.tokenizer));
  }
  return plan;
}

}  // namespace kvant::cli
