// Tokenizer::load for a GGUF file, whose metadata name a model ("gpt2", "llama", "t5"), a
// pre-tokenizer, tokens with types and scores or merges; the steps around them are fixed by those
// names.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "files/gguf.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/pipeline.h"
#include "model/tokenizer/read_model.h"

namespace kvant {
namespace tokenizer {
namespace {

// tokenizer.ggml.token_type
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

std::string key(std::string_view name) { return "tokenizer.ggml." + std::string(name); }

Status wrong(const GgufFile& gguf, std::string_view name, std::string_view message) {
  return corrupt(fmt::format("{}: {}: {}", gguf.path().string(), key(name), message));
}

// ---- Byte-level BPE
enum class Digits : uint8_t { kByPattern, kSingle };
struct PreTokenizerRow {
  std::string_view name;
  std::string_view pattern;
  Digits digits;
  bool whole_words;  // a word that is a token isn't built by merges
};
constexpr PreTokenizerRow kPreTokenizers[] = {
    {"default", kGpt2Pattern, Digits::kByPattern, false},
    {"gpt-2", kGpt2Pattern, Digits::kByPattern, false},
    {"smollm", kGpt2Pattern, Digits::kSingle, false},
    {"llama-bpe", kLlama3Pattern, Digits::kByPattern, true},
    {"llama3", kLlama3Pattern, Digits::kByPattern, true},
    {"llama-v3", kLlama3Pattern, Digits::kByPattern, true},
    {"qwen2", kQwen2Pattern, Digits::kByPattern, false},
    {"deepseek-r1-qwen", kQwen2Pattern, Digits::kByPattern, false},
};

Result<PreTokenizerRow> find_pre_tokenizer(const GgufFile& gguf) {
  const std::string_view name = gguf.string(key("pre")).value_or("default");
  std::string known;
  for (const PreTokenizerRow& row : kPreTokenizers) {
    if (row.name == name) return row;
    if (!known.empty()) known += ", ";
    known += row.name;
  }
  return unsupported(fmt::format("{}: {}: '{}' is not supported; known are {}",
                                 gguf.path().string(), key("pre"), name, known));
}

// GGUF merges are "left right", spelled in the byte alphabet, which has no space.
Status add_merges(const GgufFile& gguf, const Vocab& vocab, Bpe& bpe) {
  const std::optional<std::vector<std::string_view>> merges = gguf.strings(key("merges"));
  if (!merges) return wrong(gguf, "merges", "no list of strings; byte-level BPE needs it");
  bpe.reserve_merges(merges->size());
  std::string joined;
  for (size_t i = 0; i < merges->size(); ++i) {
    const std::string_view text = (*merges)[i];
    const size_t space = text.find(' ', 1);
    if (space == std::string_view::npos)
      return wrong(gguf, "merges", fmt::format("entry {} is not two tokens", i));
    joined = text.substr(0, space);
    joined += text.substr(space + 1);
    const int32_t left = vocab.find(text.substr(0, space)),
                  right = vocab.find(text.substr(space + 1));
    const int32_t merged = vocab.find(joined);
    if (left == kNoToken || right == kNoToken || merged == kNoToken) {
      return wrong(gguf, "merges",
                   fmt::format("entry {}, '{}': a token is not in the vocabulary", i, text));
    }
    bpe.add_merge(left, right, merged);
  }
  return {};
}

Status build_byte_level(const GgufFile& gguf, Description& out) {
  KVANT_ASSIGN(const PreTokenizerRow row, find_pre_tokenizer(gguf));
  if (row.digits == Digits::kSingle) {
    out.pre_tokenizers.push_back(make_split_chars(&is_numeric, SplitBehavior::kIsolated));
  }
  KVANT_ASSIGN(std::unique_ptr<Regex> regex, Regex::compile(row.pattern));
  out.pre_tokenizers.push_back(
      make_split(std::move(regex), SplitBehavior::kIsolated, SplitOn::kMatches));
  BpeOptions options;
  options.alphabet = Alphabet::kBytes;
  options.ignore_merges = row.whole_words;
  auto bpe = std::make_unique<Bpe>(*out.vocab, options);
  KVANT_TRY(add_merges(gguf, *out.vocab, *bpe));
  out.model = std::move(bpe);
  out.decoders.push_back(make_byte_level_decoder());
  out.summary = fmt::format("byte-level BPE, {} pre-tokenizer", row.name);
  return {};
}

// ---- SentencePiece
// Gemma takes text as it is, Phi-3 prepends in a normalizer (so " hi" gets a second mark), others
// in Metaspace.
enum class SpaceRule : uint8_t { kReplace, kPrependAlways, kMetaspaceFirst };
struct ArchitectureRow {
  std::string_view prefix;
  SpaceRule rule;
};
constexpr ArchitectureRow kArchitectures[] = {{"gemma", SpaceRule::kReplace},
                                              {"phi3", SpaceRule::kPrependAlways},
                                              {"", SpaceRule::kMetaspaceFirst}};

SpaceRule space_rule(const GgufFile& gguf) {
  const std::string_view architecture = gguf.string("general.architecture").value_or("");
  for (const ArchitectureRow& row : kArchitectures) {
    if (architecture.starts_with(row.prefix)) return row.rule;
  }
  return SpaceRule::kMetaspaceFirst;
}

Result<std::unique_ptr<Normalizer>> make_space_marks() {
  KVANT_ASSIGN(std::unique_ptr<Regex> space, Regex::literal(" "));
  return make_replace(std::move(space), std::string(kMetaspace));
}

Status build_space_steps(const GgufFile& gguf, SpaceRule rule, Description& out) {
  const bool prefix = gguf.boolean(key("add_space_prefix")).value_or(rule != SpaceRule::kReplace);
  if (rule == SpaceRule::kMetaspaceFirst) {
    out.pre_tokenizers.push_back(make_metaspace(
        std::string(kMetaspace), prefix ? PrependScheme::kFirst : PrependScheme::kNever,
        MetaspaceCut::kWhole));
  } else {
    if (prefix && rule == SpaceRule::kPrependAlways)
      out.normalizers.push_back(make_prepend(std::string(kMetaspace)));
    KVANT_ASSIGN(std::unique_ptr<Normalizer> marks, make_space_marks());
    out.normalizers.push_back(std::move(marks));
  }
  KVANT_ASSIGN(std::unique_ptr<Regex> mark, Regex::literal(kMetaspace));
  out.decoders.push_back(make_replace_decoder(std::move(mark), " "));
  out.decoders.push_back(make_byte_fallback_decoder());
  out.decoders.push_back(make_fuse_decoder());
  if (prefix) out.decoders.push_back(make_strip_decoder(" ", 1, 0, StripScope::kWholeText));
  return {};
}

Result<std::vector<double>> read_scores(const GgufFile& gguf, const Vocab& vocab) {
  std::optional<std::vector<double>> scores = gguf.numbers(key("scores"));
  if (!scores || scores->size() != static_cast<size_t>(vocab.size())) {
    return wrong(gguf, "scores",
                 fmt::format("{} numbers; wanted one for each of {} tokens",
                             scores ? scores->size() : 0, vocab.size()));
  }
  const auto bad =
      std::find_if(scores->begin(), scores->end(), [](double score) { return std::isnan(score); });
  if (bad != scores->end())
    return wrong(gguf, "scores", fmt::format("entry {} is NaN", bad - scores->begin()));
  return std::move(*scores);
}

Status build_sentencepiece(const GgufFile& gguf, Description& out) {
  const SpaceRule rule = space_rule(gguf);
  BpeOptions options;
  options.byte_fallback = options.fuse_unknown = true;
  options.unknown = static_cast<int32_t>(gguf.integer(key("unknown_token_id")).value_or(kNoToken));
  auto bpe = std::make_unique<Bpe>(*out.vocab, options);
  std::vector<float> order(static_cast<size_t>(out.vocab->size()));
  if (rule == SpaceRule::kReplace) {
    // Gemma's scores don't follow the order of its merges; the order of its tokens does.
    for (size_t id = 0; id < order.size(); ++id) order[id] = -static_cast<float>(id);
  } else {
    KVANT_ASSIGN(const std::vector<double> scores, read_scores(gguf, *out.vocab));
    std::transform(scores.begin(), scores.end(), order.begin(),
                   [](double s) { return static_cast<float>(s); });
  }
  bpe->order_by_score(order);
  out.model = std::move(bpe);
  out.summary = "SentencePiece BPE with byte fallback";
  return build_space_steps(gguf, rule, out);
}

Status build_unigram(const GgufFile& gguf, Description& out) {
  KVANT_ASSIGN(std::vector<double> scores, read_scores(gguf, *out.vocab));
  const auto unknown =
      static_cast<int32_t>(gguf.integer(key("unknown_token_id")).value_or(kNoToken));
  out.model = std::make_unique<Unigram>(*out.vocab, std::move(scores), unknown, false);
  out.summary = "SentencePiece unigram";
  out.pre_tokenizers.push_back(
      make_metaspace(std::string(kMetaspace), PrependScheme::kAlways, MetaspaceCut::kWords));
  out.decoders.push_back(make_metaspace_decoder(std::string(kMetaspace), PrependScheme::kAlways));
  return {};
}

struct ModelRow {
  std::string_view name;
  Status (*build)(const GgufFile& gguf, Description& out);
};
constexpr ModelRow kModels[] = {
    {"gpt2", &build_byte_level}, {"llama", &build_sentencepiece}, {"t5", &build_unigram}};

// ---- Tokens
// Gemma files hold the tokens of several spaces as spaces; the text that reaches them has marks
// instead.
std::string respelled(std::string_view text) {
  if (text.size() < 2 || text.find_first_not_of(' ') != std::string_view::npos)
    return std::string(text);
  std::string marks;
  for (size_t i = 0; i < text.size(); ++i) marks += kMetaspace;
  return marks;
}

Status read_tokens(const GgufFile& gguf, Description& out) {
  const std::optional<std::vector<std::string_view>> tokens = gguf.strings(key("tokens"));
  if (!tokens || tokens->empty())
    return wrong(gguf, "tokens", "no list of strings; a tokenizer needs it");
  if (static_cast<int64_t>(tokens->size()) > kMaxTokens) {
    return wrong(gguf, "tokens",
                 fmt::format("{} tokens; at most {} are read", tokens->size(), kMaxTokens));
  }
  const bool gemma =
      gguf.string(key("model")) == "llama" && space_rule(gguf) == SpaceRule::kReplace;
  out.vocab->reserve(tokens->size(), tokens->size() * 8);
  for (size_t id = 0; id < tokens->size(); ++id) {
    if (!is_valid_utf8((*tokens)[id]))
      return wrong(gguf, "tokens", fmt::format("entry {} is not UTF-8", id));
    out.vocab->set(static_cast<int32_t>(id),
                   gemma ? respelled((*tokens)[id]) : std::string((*tokens)[id]));
  }
  return {};
}

// Control tokens are special, user-defined ones are found in text as well.
Status read_token_types(const GgufFile& gguf, Description& out) {
  const std::optional<std::vector<int64_t>> types = gguf.integers(key("token_type"));
  if (!types) return {};
  if (types->size() != static_cast<size_t>(out.vocab->size())) {
    return wrong(gguf, "token_type",
                 fmt::format("{} entries for {} tokens", types->size(), out.vocab->size()));
  }
  for (size_t i = 0; i < types->size(); ++i) {
    const int64_t type = (*types)[i];
    if (type != kControl && type != kUserDefined) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(i);
    token.content = out.vocab->text(token.id);
    token.special = type == kControl;
    // Marks can't be in raw text: such a token is the model's to build.
    if (token.content.find(kMetaspace) == std::string::npos) out.added.push_back(std::move(token));
  }
  return {};
}

Result<std::optional<int32_t>> read_id(const GgufFile& gguf, std::string_view name,
                                       const Vocab& vocab) {
  const std::optional<int64_t> id = gguf.integer(key(name));
  if (!id) return std::optional<int32_t>();
  if (*id < 0 || *id >= vocab.size()) {
    return wrong(gguf, name, fmt::format("found {}; wanted an id below {}", *id, vocab.size()));
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

Status read_special_ids(const GgufFile& gguf, Description& out) {
  KVANT_ASSIGN(out.bos, read_id(gguf, "bos_token_id", *out.vocab));
  KVANT_ASSIGN(out.eos, read_id(gguf, "eos_token_id", *out.vocab));
  KVANT_ASSIGN(const std::optional<int32_t> unknown, read_id(gguf, "unknown_token_id", *out.vocab));
  (void)unknown;  // checked here, used by the model's builder
  for (const std::string_view name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    KVANT_ASSIGN(const std::optional<int32_t> id, read_id(gguf, name, *out.vocab));
    auto& ends = out.end_of_generation;
    if (id && std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
  }
  append_known_ends(*out.vocab, out.added, out.end_of_generation);
  // Files that don't say: SentencePiece models and Llama 3 want BOS.
  const bool wants_bos =
      gguf.string(key("model")) == "llama" || gguf.string(key("pre")) == "llama-bpe";
  if (gguf.boolean(key("add_bos_token")).value_or(wants_bos) && out.bos)
    out.prefix.push_back(*out.bos);
  if (gguf.boolean(key("add_eos_token")).value_or(false) && out.eos) out.suffix.push_back(*out.eos);
  return {};
}

Status read_gguf(const GgufFile& gguf, Description& out) {
  const std::string_view model = gguf.string(key("model")).value_or("");
  if (model.empty()) return wrong(gguf, "model", "no string; the file holds no tokenizer");
  std::string known;
  for (const ModelRow& row : kModels) {
    if (row.name != model) {
      known += (known.empty() ? "" : ", ") + std::string(row.name);
      continue;
    }
    KVANT_TRY(read_tokens(gguf, out));
    KVANT_TRY(read_token_types(gguf, out));
    KVANT_TRY(read_special_ids(gguf, out));
    out.chat_template = gguf.string("tokenizer.chat_template").value_or("");
    return row.build(gguf, out);
  }
  return unsupported(fmt::format("{}: {}: '{}' is not supported; known are {}",
                                 gguf.path().string(), key("model"), model, known));
}

}  // namespace
}  // namespace tokenizer

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const GgufFile& gguf) {
  tokenizer::Description description;
  KVANT_TRY(tokenizer::read_gguf(gguf, description));
  return std::unique_ptr<Tokenizer>(std::make_unique<tokenizer::Pipeline>(std::move(description)));
}

}  // namespace kvant
