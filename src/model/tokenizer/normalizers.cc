#include <algorithm>
#include <utility>

#include "model/tokenizer/steps.h"

namespace kvant::tokenizer {
namespace {

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }
  double growth() const override { return 1 + static_cast<double>(prefix_.size()); }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(std::unique_ptr<Regex> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text) const override { text = replace_all(text, *pattern_, content_); }
  double growth() const override { return replace_growth(*pattern_, content_); }

 private:
  std::unique_ptr<Regex> pattern_;
  std::string content_;
};

class Form final : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  void apply(std::string& text) const override { text = normalize(text, form_); }
  // U+0390 decomposes from 2 bytes to 6, U+FDFA compatibly from 3 to 33.
  double growth() const override {
    return form_ == NormalForm::kNfkc || form_ == NormalForm::kNfkd ? 11 : 3;
  }

 private:
  NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(std::string& text) const override { text = lowercase(text); }
  double growth() const override { return 1.5; }  // U+023A, U+0130: from 2 bytes to 3
};

class Strip final : public Normalizer {
 public:
  explicit Strip(Sides sides) : sides_(sides) {}
  void apply(std::string& text) const override {
    size_t begin = 0, end = 0, pos = 0;
    bool seen = false;
    while (pos < text.size()) {
      const size_t at = pos;
      if (is_whitespace(next_char(text, pos))) continue;
      if (!seen) begin = at;
      seen = true;
      end = pos;
    }
    if (!seen) begin = end = sides_ == Sides::kNone ? 0 : text.size();
    if (sides_ == Sides::kLeft || sides_ == Sides::kNone) end = text.size();
    if (sides_ == Sides::kRight || sides_ == Sides::kNone) begin = seen ? 0 : begin;
    text = text.substr(begin, end - begin);
  }

 private:
  Sides sides_;
};

}  // namespace

std::string replace_all(std::string_view text, const Regex& pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t done = 0;
  for (size_t from = 0; from <= text.size();) {
    const std::optional<Match> match = pattern.search(text, from);
    if (!match) break;
    out += text.substr(done, match->begin - done);
    out += content;
    done = match->end;
    from = match->end;
    if (match->end == match->begin) {  // an empty match: go on behind the next character
      if (from == text.size()) break;
      from += utf8_length(static_cast<unsigned char>(text[from]));
    }
  }
  out += text.substr(done);
  return out;
}

double replace_growth(const Regex& pattern, std::string_view content) {
  const auto bytes = static_cast<double>(content.size());
  const auto least = static_cast<double>(pattern.min_bytes());
  return least > 0 ? std::max(1.0, bytes / least) : 1 + 2 * bytes;  // a match between any two bytes
}

std::unique_ptr<Normalizer> make_prepend(std::string prefix) {
  return std::make_unique<Prepend>(std::move(prefix));
}
std::unique_ptr<Normalizer> make_replace(std::unique_ptr<Regex> pattern, std::string content) {
  return std::make_unique<Replace>(std::move(pattern), std::move(content));
}
std::unique_ptr<Normalizer> make_normal_form(NormalForm form) {
  return std::make_unique<Form>(form);
}
std::unique_ptr<Normalizer> make_lowercase() { return std::make_unique<Lowercase>(); }
std::unique_ptr<Normalizer> make_strip(Sides sides) { return std::make_unique<Strip>(sides); }

}  // namespace kvant::tokenizer
