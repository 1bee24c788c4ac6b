#include "model/tokenizer/read_steps.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace kvant::tokenizer {
namespace {

// A row per step type that a reader knows: its name, and the function that reads the entry.
template <typename Out>
struct Reader {
  std::string_view type;
  Status (*read)(const JsonNode& node, Out& out);
};

template <typename Out, size_t N>
Status read_by_type(const JsonNode& node, const Reader<Out> (&readers)[N], Out& out) {
  KVANT_ASSIGN(const std::string_view type, node.member("type").string());
  std::string known;
  for (const Reader<Out>& reader : readers) {
    if (reader.type == type) return reader.read(node, out);
    if (!known.empty()) known += ", ";
    known += reader.type;
  }
  return node.not_supported(fmt::format("type '{}' is not supported; known are {}", type, known));
}

// {"Regex": "…"} or {"String": "…"}; a bare string is text, too.
Result<std::unique_ptr<Regex>> read_pattern(const JsonNode& node) {
  const JsonNode regex = node.member("Regex");
  const JsonNode text = node.is_string() ? node : node.member("String");
  if (regex.present()) {
    KVANT_ASSIGN(const std::string_view pattern, regex.string());
    Result<std::unique_ptr<Regex>> compiled = Regex::compile(pattern);
    if (!compiled.ok()) return regex.wrong(compiled.status().message());
    return compiled;
  }
  KVANT_ASSIGN(const std::string_view literal, text.string());
  return Regex::literal(literal);
}

template <typename T>
struct Named {
  std::string_view name;
  T value;
};
template <typename T, size_t N>
Result<T> read_named(const JsonNode& node, const Named<T> (&names)[N]) {
  KVANT_ASSIGN(const std::string_view text, node.string());
  std::string known;
  for (const Named<T>& name : names) {
    if (name.name == text) return name.value;
    if (!known.empty()) known += ", ";
    known += name.name;
  }
  return node.wrong(fmt::format("'{}' is not one of {}", text, known));
}

constexpr Named<SplitBehavior> kBehaviors[] = {
    {"Removed", SplitBehavior::kRemoved},
    {"Isolated", SplitBehavior::kIsolated},
    {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
    {"MergedWithNext", SplitBehavior::kMergedWithNext},
    {"Contiguous", SplitBehavior::kContiguous},
};
constexpr Named<PrependScheme> kSchemes[] = {{"never", PrependScheme::kNever},
                                             {"first", PrependScheme::kFirst},
                                             {"always", PrependScheme::kAlways}};

Result<PrependScheme> read_scheme(const JsonNode& node) {
  const JsonNode scheme = node.member("prepend_scheme");
  if (scheme.present()) return read_named(scheme, kSchemes);
  KVANT_ASSIGN(const bool prefix,
               node.member("add_prefix_space").boolean_or(true));  // files before 0.15
  return prefix ? PrependScheme::kAlways : PrependScheme::kNever;
}

// ---- Normalizers
Status read_normalizers(const JsonNode& node, Normalizers& out) {
  KVANT_ASSIGN(const std::vector<JsonNode> list, node.member("normalizers").elements());
  for (const JsonNode& entry : list) KVANT_TRY(read_normalizer(entry, out));
  return {};
}
Status read_prepend(const JsonNode& node, Normalizers& out) {
  KVANT_ASSIGN(const std::string_view prefix, node.member("prepend").string());
  out.push_back(make_prepend(std::string(prefix)));
  return {};
}
Status read_replace(const JsonNode& node, Normalizers& out) {
  KVANT_ASSIGN(std::unique_ptr<Regex> pattern, read_pattern(node.member("pattern")));
  KVANT_ASSIGN(const std::string_view content, node.member("content").string());
  out.push_back(make_replace(std::move(pattern), std::string(content)));
  return {};
}
template <NormalForm kForm>
Status read_form(const JsonNode&, Normalizers& out) {
  out.push_back(make_normal_form(kForm));
  return {};
}
Status read_lowercase(const JsonNode&, Normalizers& out) {
  out.push_back(make_lowercase());
  return {};
}
Status read_strip(const JsonNode& node, Normalizers& out) {
  KVANT_ASSIGN(const bool left, node.member("strip_left").boolean_or(true));
  KVANT_ASSIGN(const bool right, node.member("strip_right").boolean_or(true));
  static constexpr Sides kSides[2][2] = {{Sides::kNone, Sides::kRight},
                                         {Sides::kLeft, Sides::kBoth}};
  out.push_back(make_strip(kSides[left][right]));
  return {};
}

constexpr Reader<Normalizers> kNormalizers[] = {
    {"Sequence", &read_normalizers},
    {"Prepend", &read_prepend},
    {"Replace", &read_replace},
    {"NFC", &read_form<NormalForm::kNfc>},
    {"NFD", &read_form<NormalForm::kNfd>},
    {"NFKC", &read_form<NormalForm::kNfkc>},
    {"NFKD", &read_form<NormalForm::kNfkd>},
    {"Lowercase", &read_lowercase},
    {"Strip", &read_strip},
};

// ---- Pre-tokenizers
Status add_split(std::string_view pattern, SplitBehavior behavior, PreTokenizerEntry& out) {
  KVANT_ASSIGN(std::unique_ptr<Regex> regex, Regex::compile(pattern));
  out.steps.push_back(make_split(std::move(regex), behavior, SplitOn::kMatches));
  return {};
}

Status read_pre_tokenizers(const JsonNode& node, PreTokenizerEntry& out) {
  KVANT_ASSIGN(const std::vector<JsonNode> list, node.member("pretokenizers").elements());
  for (const JsonNode& entry : list) KVANT_TRY(read_pre_tokenizer(entry, out));
  return {};
}
Status read_byte_level(const JsonNode& node, PreTokenizerEntry& out) {
  KVANT_ASSIGN(const bool prefix, node.member("add_prefix_space").boolean_or(true));
  KVANT_ASSIGN(const bool use_regex, node.member("use_regex").boolean_or(true));
  if (prefix) out.steps.push_back(make_prefix_space());
  if (use_regex) KVANT_TRY(add_split(kGpt2Pattern, SplitBehavior::kIsolated, out));
  out.byte_level = true;
  return {};
}
Status read_split(const JsonNode& node, PreTokenizerEntry& out) {
  KVANT_ASSIGN(std::unique_ptr<Regex> pattern, read_pattern(node.member("pattern")));
  KVANT_ASSIGN(const SplitBehavior behavior, read_named(node.member("behavior"), kBehaviors));
  KVANT_ASSIGN(const bool invert, node.member("invert").boolean_or(false));
  out.steps.push_back(
      make_split(std::move(pattern), behavior, invert ? SplitOn::kGaps : SplitOn::kMatches));
  return {};
}
Status read_digits(const JsonNode& node, PreTokenizerEntry& out) {
  KVANT_ASSIGN(const bool individual, node.member("individual_digits").boolean_or(false));
  out.steps.push_back(make_split_chars(
      &is_numeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  return {};
}
Status read_metaspace(const JsonNode& node, PreTokenizerEntry& out) {
  KVANT_ASSIGN(const std::string_view replacement,
               node.member("replacement").string_or(kMetaspace));
  KVANT_ASSIGN(const PrependScheme scheme, read_scheme(node));
  KVANT_ASSIGN(const bool split, node.member("split").boolean_or(true));
  if (replacement.empty())
    return node.member("replacement").wrong("found an empty string; wanted a character");
  out.steps.push_back(make_metaspace(std::string(replacement), scheme,
                                     split ? MetaspaceCut::kWords : MetaspaceCut::kWhole));
  return {};
}
Status read_whitespace(const JsonNode&, PreTokenizerEntry& out) {
  KVANT_ASSIGN(std::unique_ptr<Regex> words, Regex::compile(R"(\w+|[^\w\s]+)"));
  out.steps.push_back(make_split(std::move(words), SplitBehavior::kRemoved, SplitOn::kGaps));
  return {};
}
Status read_whitespace_split(const JsonNode&, PreTokenizerEntry& out) {
  out.steps.push_back(make_split_chars(&is_whitespace, SplitBehavior::kRemoved));
  return {};
}
Status read_punctuation(const JsonNode& node, PreTokenizerEntry& out) {
  SplitBehavior behavior = SplitBehavior::kIsolated;
  if (node.member("behavior").present()) {
    KVANT_ASSIGN(behavior, read_named(node.member("behavior"), kBehaviors));
  }
  out.steps.push_back(make_split_chars(&is_punctuation, behavior));
  return {};
}

constexpr Reader<PreTokenizerEntry> kPreTokenizers[] = {
    {"Sequence", &read_pre_tokenizers},
    {"ByteLevel", &read_byte_level},
    {"Split", &read_split},
    {"Digits", &read_digits},
    {"Metaspace", &read_metaspace},
    {"Whitespace", &read_whitespace},
    {"Punctuation", &read_punctuation},
    {"WhitespaceSplit", &read_whitespace_split},
};

// ---- Decoders
Status read_decoders(const JsonNode& node, Decoders& out) {
  KVANT_ASSIGN(const std::vector<JsonNode> list, node.member("decoders").elements());
  for (const JsonNode& entry : list) KVANT_TRY(read_decoder(entry, out));
  return {};
}
Status read_byte_level_decoder(const JsonNode&, Decoders& out) {
  out.push_back(make_byte_level_decoder());
  return {};
}
Status read_metaspace_decoder(const JsonNode& node, Decoders& out) {
  KVANT_ASSIGN(const std::string_view replacement,
               node.member("replacement").string_or(kMetaspace));
  KVANT_ASSIGN(const PrependScheme scheme, read_scheme(node));
  if (replacement.empty())
    return node.member("replacement").wrong("found an empty string; wanted a character");
  out.push_back(make_metaspace_decoder(std::string(replacement), scheme));
  return {};
}
Status read_byte_fallback(const JsonNode&, Decoders& out) {
  out.push_back(make_byte_fallback_decoder());
  return {};
}
Status read_fuse(const JsonNode&, Decoders& out) {
  out.push_back(make_fuse_decoder());
  return {};
}
Status read_strip_decoder(const JsonNode& node, Decoders& out) {
  KVANT_ASSIGN(const std::string_view content, node.member("content").string());
  KVANT_ASSIGN(const int64_t left, node.member("start").integer_or(0));
  KVANT_ASSIGN(const int64_t right, node.member("stop").integer_or(0));
  if (content.empty())
    return node.member("content").wrong("found an empty string; wanted a character");
  if (left < 0) return node.member("start").wrong(fmt::format("found {}; wanted 0 or more", left));
  if (right < 0) return node.member("stop").wrong(fmt::format("found {}; wanted 0 or more", right));
  bool fused = false;
  for (const auto& step : out) fused = fused || step->fuses();
  out.push_back(make_strip_decoder(std::string(content), static_cast<size_t>(left),
                                   static_cast<size_t>(right),
                                   fused ? StripScope::kWholeText : StripScope::kEachToken));
  return {};
}
Status read_replace_decoder(const JsonNode& node, Decoders& out) {
  KVANT_ASSIGN(std::unique_ptr<Regex> pattern, read_pattern(node.member("pattern")));
  KVANT_ASSIGN(const std::string_view content, node.member("content").string());
  out.push_back(make_replace_decoder(std::move(pattern), std::string(content)));
  return {};
}

constexpr Reader<Decoders> kDecoders[] = {
    {"Sequence", &read_decoders},
    {"ByteLevel", &read_byte_level_decoder},
    {"Metaspace", &read_metaspace_decoder},
    {"ByteFallback", &read_byte_fallback},
    {"Fuse", &read_fuse},
    {"Strip", &read_strip_decoder},
    {"Replace", &read_replace_decoder},
};

// ---- Post-processors
Status read_post_processors(const JsonNode& node, Description& out) {
  KVANT_ASSIGN(const std::vector<JsonNode> list, node.member("processors").elements());
  for (const JsonNode& entry : list) KVANT_TRY(read_post_processor(entry, out));
  return {};
}
// ByteLevel moves offsets only.
Status read_nothing(const JsonNode&, Description&) { return {}; }

Status append_special(const JsonNode& node, const JsonNode& table, std::string_view name,
                      const Description& out, std::vector<int32_t>& ids) {
  const JsonNode list = table.member(name).member("ids");
  if (!list.present()) return node.wrong(fmt::format("'{}' is not among special_tokens", name));
  KVANT_ASSIGN(const std::vector<JsonNode> elements, list.elements());
  for (const JsonNode& element : elements) {
    KVANT_ASSIGN(const int64_t id, element.integer());
    if (id < 0 || id >= out.vocab->size()) {
      return element.wrong(fmt::format("found {}; wanted an id below {}", id, out.vocab->size()));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return {};
}

Status read_template(const JsonNode& node, Description& out) {
  KVANT_ASSIGN(const std::vector<JsonNode> items, node.member("single").elements());
  std::vector<int32_t> prefix, suffix;
  bool seen = false;
  for (const JsonNode& item : items) {
    if (item.member("Sequence").present()) {
      if (seen) return item.not_supported("the text appears twice");
      seen = true;
      continue;
    }
    KVANT_ASSIGN(const std::string_view name, item.member("SpecialToken").member("id").string());
    KVANT_TRY(
        append_special(item, node.member("special_tokens"), name, out, seen ? suffix : prefix));
  }
  // A later processor of a sequence wraps what an earlier one made.
  out.prefix.insert(out.prefix.begin(), prefix.begin(), prefix.end());
  out.suffix.insert(out.suffix.end(), suffix.begin(), suffix.end());
  return {};
}

constexpr Reader<Description> kPostProcessors[] = {{"Sequence", &read_post_processors},
                                                   {"TemplateProcessing", &read_template},
                                                   {"ByteLevel", &read_nothing}};

}  // namespace

Status read_normalizer(const JsonNode& node, Normalizers& out) {
  return node.present() ? read_by_type(node, kNormalizers, out) : Status();
}

Status read_pre_tokenizer(const JsonNode& node, PreTokenizerEntry& out) {
  if (!node.present()) return {};
  if (out.byte_level) return node.not_supported("a step behind ByteLevel is not supported");
  return read_by_type(node, kPreTokenizers, out);
}

Status read_decoder(const JsonNode& node, Decoders& out) {
  return node.present() ? read_by_type(node, kDecoders, out) : Status();
}

Status read_post_processor(const JsonNode& node, Description& out) {
  return node.present() ? read_by_type(node, kPostProcessors, out) : Status();
}

}  // namespace kvant::tokenizer
