#include "model/tokenizer/read_model.h"

#include <fmt/format.h>

#include <cmath>

namespace kvant::tokenizer {
namespace {

constexpr size_t kMaxAddedBytes =
    4096;  // tried at every place of a text; real ones have some dozen

Status read_vocab(const JsonNode& node, Vocab& vocab) {
  KVANT_ASSIGN(const simdjson::dom::object entries, node.object());
  vocab.reserve(entries.size(), entries.size() * 8);
  for (const auto& [text, value] : entries) {
    int64_t id = -1;
    if (value.get(id) != simdjson::SUCCESS || id < 0 || id >= kMaxTokens) {
      return node.wrong(
          fmt::format("the id of '{}' is not an integer from 0 to {}", text, kMaxTokens - 1));
    }
    if (vocab.has(static_cast<int32_t>(id))) {
      return node.wrong(fmt::format("'{}' and '{}' have the same id {}",
                                    vocab.text(static_cast<int32_t>(id)), text, id));
    }
    vocab.set(static_cast<int32_t>(id), text);
  }
  return {};
}

// A merge is "left right" or ["left", "right"].
struct Pair {
  std::string_view left, right;
};
Result<Pair> read_pair(const JsonNode& node, size_t index, const simdjson::dom::element& merge) {
  Pair pair;
  std::string_view text;
  if (merge.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return Pair{text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.at(0).get(pair.left) == simdjson::SUCCESS &&
             merge.at(1).get(pair.right) == simdjson::SUCCESS) {
    return pair;
  }
  return node.wrong(fmt::format("entry {} is not two tokens", index));
}

Status read_merges(const JsonNode& node, const Vocab& vocab, Bpe& bpe) {
  KVANT_ASSIGN(const simdjson::dom::array merges, node.array());
  bpe.reserve_merges(merges.size());
  size_t index = 0;
  std::string joined;
  for (const simdjson::dom::element merge : merges) {
    KVANT_ASSIGN(const Pair pair, read_pair(node, index, merge));
    joined = pair.left;
    joined += pair.right;
    const int32_t left = vocab.find(pair.left), right = vocab.find(pair.right),
                  merged = vocab.find(joined);
    if (left == kNoToken || right == kNoToken || merged == kNoToken) {
      const std::string_view missing = left == kNoToken    ? pair.left
                                       : right == kNoToken ? pair.right
                                                           : joined;
      return node.wrong(fmt::format("entry {}: '{}' is not in the vocabulary", index, missing));
    }
    bpe.add_merge(left, right, merged);
    ++index;
  }
  return {};
}

Status refuse_affix(const JsonNode& node) {
  KVANT_ASSIGN(const std::string_view affix, node.string_or(""));
  if (affix.empty()) return {};
  return node.not_supported(fmt::format("'{}' found; only an empty one is supported", affix));
}

Status read_bpe(const JsonNode& node, Alphabet alphabet, Description& out) {
  KVANT_TRY(refuse_affix(node.member("continuing_subword_prefix")));
  KVANT_TRY(refuse_affix(node.member("end_of_word_suffix")));
  KVANT_TRY(read_vocab(node.member("vocab"), *out.vocab));
  BpeOptions options;
  options.alphabet = alphabet;
  if (node.member("unk_token").present()) {
    KVANT_ASSIGN(const std::string_view unknown, node.member("unk_token").string());
    options.unknown = out.vocab->find(unknown);
  }
  KVANT_ASSIGN(options.fuse_unknown, node.member("fuse_unk").boolean_or(false));
  KVANT_ASSIGN(options.byte_fallback, node.member("byte_fallback").boolean_or(false));
  KVANT_ASSIGN(options.ignore_merges, node.member("ignore_merges").boolean_or(false));
  auto bpe = std::make_unique<Bpe>(*out.vocab, options);
  KVANT_TRY(read_merges(node.member("merges"), *out.vocab, *bpe));
  out.model = std::move(bpe);
  out.summary = alphabet == Alphabet::kBytes ? "byte-level BPE"
                : options.byte_fallback      ? "SentencePiece BPE with byte fallback"
                                             : "BPE";
  return {};
}

Status read_unigram(const JsonNode& node, Alphabet alphabet, Description& out) {
  if (alphabet == Alphabet::kBytes)
    return node.not_supported("a Unigram model behind ByteLevel is not supported");
  KVANT_ASSIGN(const simdjson::dom::array entries, node.member("vocab").array());
  std::vector<double> scores;
  for (const simdjson::dom::element entry : entries) {
    std::string_view text;
    double score = 0;
    if (entry.at(0).get(text) != simdjson::SUCCESS || entry.at(1).get(score) != simdjson::SUCCESS) {
      return node.member("vocab").wrong(
          fmt::format("entry {} is not a token and its score", scores.size()));
    }
    if (static_cast<int64_t>(scores.size()) >= kMaxTokens) {
      return node.member("vocab").wrong(fmt::format("more than {} tokens", kMaxTokens));
    }
    out.vocab->set(static_cast<int32_t>(scores.size()), text);
    scores.push_back(score);
  }
  if (scores.empty()) return node.member("vocab").wrong("found no token; wanted at least one");
  KVANT_ASSIGN(const int64_t unknown, node.member("unk_id").integer_or(kNoToken));
  if (unknown < kNoToken || unknown >= static_cast<int64_t>(scores.size())) {
    return node.member("unk_id").wrong(
        fmt::format("found {}; wanted an id below {}", unknown, scores.size()));
  }
  KVANT_ASSIGN(const bool fallback, node.member("byte_fallback").boolean_or(false));
  out.model = std::make_unique<Unigram>(*out.vocab, std::move(scores),
                                        static_cast<int32_t>(unknown), fallback);
  out.summary = fallback ? "SentencePiece unigram with byte fallback" : "SentencePiece unigram";
  return {};
}

}  // namespace

Status read_model(const JsonNode& node, Alphabet alphabet, Description& out) {
  if (!node.is_object()) return node.wrong("is missing");
  // Files of old versions name no type; a list of merges tells.
  KVANT_ASSIGN(const std::string_view type,
               node.member("type").string_or(node.member("merges").present() ? "BPE" : "Unigram"));
  if (type == "BPE") return read_bpe(node, alphabet, out);
  if (type == "Unigram") return read_unigram(node, alphabet, out);
  return node.member("type").not_supported(
      fmt::format("'{}' is not supported; known are BPE, Unigram", type));
}

Status read_added_tokens(const JsonNode& node, Description& out) {
  if (!node.present()) return {};
  KVANT_ASSIGN(const std::vector<JsonNode> entries, node.elements());
  for (const JsonNode& entry : entries) {
    AddedToken token;
    KVANT_ASSIGN(const std::string_view content, entry.member("content").string());
    KVANT_ASSIGN(const int64_t id, entry.member("id").integer());
    KVANT_ASSIGN(token.special, entry.member("special").boolean_or(false));
    KVANT_ASSIGN(token.single_word, entry.member("single_word").boolean_or(false));
    KVANT_ASSIGN(token.lstrip, entry.member("lstrip").boolean_or(false));
    KVANT_ASSIGN(token.rstrip, entry.member("rstrip").boolean_or(false));
    KVANT_ASSIGN(token.normalized, entry.member("normalized").boolean_or(!token.special));
    if (content.size() > kMaxAddedBytes) {
      return entry.member("content").wrong(
          fmt::format("{} bytes; wanted at most {}", content.size(), kMaxAddedBytes));
    }
    token.content = content;
    token.id =
        out.vocab->find(content);  // the vocabulary's id wins over the entry's, as in the reference
    if (token.id == kNoToken) {
      if (id < 0 || id >= kMaxTokens) {
        return entry.member("id").wrong(
            fmt::format("found {}; wanted 0 to {}", id, kMaxTokens - 1));
      }
      token.id = static_cast<int32_t>(id);
      if (out.vocab->has(token.id)) {
        return entry.member("id").wrong(
            fmt::format("{} is taken by '{}'", id, out.vocab->text(token.id)));
      }
      out.vocab->set(token.id, content);
    }
    out.added.push_back(std::move(token));
  }
  return {};
}

}  // namespace kvant::tokenizer
