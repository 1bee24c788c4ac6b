// The filters that work on text.
#include <fmt/format.h>

#include <algorithm>

#include "model/chat/filters.h"
#include "model/chat/limits.h"
#include "model/chat/text.h"
#include "model/tokenizer/unicode.h"

namespace kvant::chat {
namespace {

Value to_string(Evaluator& e, const Value& self, Arguments&) { return Value(e.text(self)); }
Value trim(Evaluator& e, const Value& self, Arguments& a) {
  const std::string text = e.text(self);
  const Value* chars = a.find(0, "chars");
  if (chars == nullptr || chars->is_none()) return Value(strip(text, Side::kBoth));
  return Value(strip_chars(text, e.text(*chars), Side::kBoth));
}
template <std::string (*kMap)(std::string_view)>
Value mapped(Evaluator& e, const Value& self, Arguments&) {
  return Value(kMap(e.text(self)));
}
Value replace_filter(Evaluator& e, const Value& self, Arguments& a) {
  const std::string old = text_argument(e, a, 0, "old", ""),
                    with = text_argument(e, a, 1, "new", "");
  const int64_t count = int_argument(e, a, 2, "count", -1);
  const std::string text = e.text(self);
  if (e.failed() ||
      !e.charge((text.size() + 1) * (old.empty() ? with.size() + 1 : with.size() / old.size() + 1)))
    return Value();
  return Value(replace(text, old, with, count));
}
Value indent(Evaluator& e, const Value& self, Arguments& a) {
  const Value* width = a.find(0, "width");
  const std::string margin = width != nullptr && width->is_string()
                                 ? width->string()
                                 : std::string(static_cast<size_t>(std::clamp<int64_t>(
                                                   int_argument(e, a, 0, "width", 4), 0, 1000)),
                                               ' ');
  const bool first = flag_argument(a, 1, "first", false),
             blank = flag_argument(a, 2, "blank", false);
  const std::string text = e.text(self);
  if (e.failed() || !e.charge(text.size() * (margin.size() + 1))) return Value();
  std::string out = first ? margin : "";
  const std::vector<std::string> lines = split_lines(text, false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n" + (lines[i].empty() && !blank ? std::string() : margin);
    out += lines[i];
  }
  if (text.ends_with('\n')) out += "\n" + (blank ? margin : std::string());
  return Value(std::move(out));
}
Value center(Evaluator& e, const Value& self, Arguments& a) {
  const std::string text = e.text(self);
  const auto width =
      static_cast<size_t>(std::clamp<int64_t>(int_argument(e, a, 0, "width", 80), 0, 10000));
  const size_t size = num_chars(text);
  if (size >= width) return Value(text);
  const size_t missing = width - size,
               left = missing / 2 + (missing & width & 1);  // as CPython rounds
  return Value(std::string(left, ' ') + text + std::string(missing - left, ' '));
}
Value wordcount(Evaluator& e, const Value& self, Arguments&) {
  int64_t count = 0;
  bool inside = false;
  const std::string text = e.text(self);
  for (size_t pos = 0; pos < text.size();) {
    const bool word = tokenizer::is_word(tokenizer::next_char(text, pos));
    count += word && !inside;
    inside = word;
  }
  return Value(count);
}
Value escape(Evaluator& e, const Value& self, Arguments&) {
  static constexpr std::pair<char, std::string_view> kEscapes[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
  std::string out;
  for (const char c : e.text(self)) {
    const auto* found = std::find_if(std::begin(kEscapes), std::end(kEscapes),
                                     [c](const auto& row) { return row.first == c; });
    if (found == std::end(kEscapes)) {
      out += c;
    } else {
      out += found->second;
    }
  }
  return Value(std::move(out));
}
Value format_filter(Evaluator& e, const Value& self, Arguments& a) {
  return format_percent(e, e.text(self), Value::tuple(a.positional));
}
Value tojson(Evaluator& e, const Value& self, Arguments& a) {
  JsonStyle style;
  style.ascii = flag_argument(a, 0, "ensure_ascii", false);
  style.indent =
      static_cast<int>(std::clamp<int64_t>(int_argument(e, a, 1, "indent", -1), -1, 100));
  if (style.indent >= 0) style.item_separator = ",";
  if (const Value* separators = a.find(2, "separators");
      separators != nullptr && !separators->is_none()) {
    const std::vector<Value> pair = e.iterate(*separators);
    if (e.failed()) return Value();
    if (pair.size() != 2) return e.fail("separators are not two");
    style.item_separator = e.text(pair[0]);
    style.key_separator = e.text(pair[1]);
  }
  style.sort_keys = flag_argument(a, 3, "sort_keys", false);
  const size_t growth =
      style.indent > 0 ? static_cast<size_t>(style.indent) * static_cast<size_t>(self.depth() + 1)
                       : 1;
  if (e.failed() || !e.charge(self.weight() * (1 + growth / 8))) return Value();
  Result<std::string> json = to_json(self, style);
  if (!json.ok()) return e.fail_with(json.status());
  return Value(std::move(json).value());
}

constexpr FilterRow kTextFilters[] = {
    {"capitalize", &mapped<&capitalize>},
    {"center", &center},
    {"e", &escape},
    {"escape", &escape},
    {"forceescape", &escape},
    {"format", &format_filter},
    {"indent", &indent},
    {"lower", &mapped<&lower>},
    {"replace", &replace_filter},
    {"string", &to_string},
    {"title", &mapped<&title_filter>},
    {"tojson", &tojson},
    {"trim", &trim},
    {"upper", &mapped<&upper>},
    {"wordcount", &wordcount},
};

}  // namespace

std::span<const FilterRow> text_filters() { return kTextFilters; }

}  // namespace kvant::chat
