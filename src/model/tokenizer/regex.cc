#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>

namespace kvant::tokenizer {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
// Backtracking steps of one search: some for every byte of the text (a run of a million spaces
// takes two million), and enough for a short one.
constexpr size_t kStepsPerByte = 64;
constexpr size_t kLeastSteps = 100'000;
constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax =
    16 << 20;  // PCRE2's default of 32 KB is too little for long runs of spaces

// What a class escape stands for, to be put between brackets, and its complement where one can be
// spelled.
struct ClassEscape {
  char letter;
  std::string_view body;
};
constexpr ClassEscape kClassEscapes[] = {
    {'s',
     R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"},
    {'w', R"(\p{L}\p{M}\p{Nd}\p{Pc})"},
    {'d', R"(\p{Nd})"},
    {'h', "0-9a-fA-F"},
};

// Match data and JIT stack of one thread; made on its first search.
struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  Scratch() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

Scratch& scratch() {
  thread_local Scratch s;
  return s;
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::~Regex() = default;

std::string oniguruma_to_pcre2(std::string_view pattern) {
  std::string out;
  int class_depth = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') ++class_depth;
      if (c == ']' && class_depth > 0) --class_depth;
      out += c;
      continue;
    }
    const char letter = pattern[++i];
    const ClassEscape* found = nullptr;
    bool complement = false;
    for (const ClassEscape& escape : kClassEscapes) {
      if (letter == escape.letter) found = &escape;
      if (letter == escape.letter - 'a' + 'A') found = &escape, complement = true;
    }
    if (found == nullptr ||
        (complement && class_depth > 0)) {  // a complement inside a class stays PCRE2's own
      out += '\\';
      out += letter;
    } else if (class_depth > 0) {
      out += found->body;
    } else {
      out += complement ? "[^" : "[";
      out += found->body;
      out += ']';
    }
  }
  return out;
}

Result<std::unique_ptr<Regex>> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return corrupt(
        fmt::format("pattern of {} bytes; at most {} are taken", pattern.size(), kMaxPatternBytes));
  }
  const std::string translated = oniguruma_to_pcre2(pattern);
  int error = 0;
  size_t offset = 0;
  auto code = std::make_unique<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code->code == nullptr) {
    unsigned char message[160];
    pcre2_get_error_message(error, message, sizeof message);
    return corrupt(fmt::format("pattern '{}' is not a regular expression: {}", pattern,
                               reinterpret_cast<const char*>(message)));
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  return std::unique_ptr<Regex>(new Regex(std::move(code)));
}

Result<std::unique_ptr<Regex>> Regex::literal(std::string_view text) {
  std::unique_ptr<Regex> regex(new Regex(nullptr));
  regex->literal_ = text;
  return regex;
}

size_t Regex::min_bytes() const {
  if (code_ == nullptr) return literal_.size();
  uint32_t characters = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_MINLENGTH, &characters);
  return characters;
}

std::optional<Match> Regex::search(std::string_view text, size_t from) const {
  if (code_ == nullptr) {
    const size_t at = literal_.empty() ? std::string_view::npos : text.find(literal_, from);
    if (at == std::string_view::npos) return std::nullopt;
    return Match{at, at + literal_.size()};
  }
  Scratch& s = scratch();
  const size_t steps = kLeastSteps + kStepsPerByte * (text.size() - from);
  pcre2_set_match_limit(s.context, static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->jit)
    rc = pcre2_jit_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, s.data,
                         s.context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                     s.data, s.context);
  }
  if (rc < 0) return std::nullopt;
  const size_t* offsets = pcre2_get_ovector_pointer(s.data);
  // \K in a look-around: PCRE2 may report a start behind the end or before `from`.
  if (offsets[0] < from || offsets[1] < offsets[0]) return std::nullopt;
  return Match{offsets[0], offsets[1]};
}

}  // namespace kvant::tokenizer
