#include "model/tokenizer/pipeline.h"

#include <algorithm>

namespace kvant::tokenizer {
namespace {

constexpr std::string_view kKnownEnds[] = {
    "<|im_end|>",    "<|eot_id|>",      "<|eom_id|>", "<|end|>", "<end_of_turn>",
    "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<turn|>", "<｜end▁of▁sentence｜>",
};

}  // namespace

void append_known_ends(const Vocab& vocab, const std::vector<AddedToken>& added,
                       std::vector<int32_t>& ids) {
  for (const std::string_view name : kKnownEnds) {
    const int32_t id = vocab.find(name);
    const bool special = std::any_of(added.begin(), added.end(), [&](const AddedToken& token) {
      return token.id == id && token.special;
    });
    if (id != kNoToken && special && std::find(ids.begin(), ids.end(), id) == ids.end())
      ids.push_back(id);
  }
}

Pipeline::Pipeline(Description description) : d_(std::move(description)) {
  special_.resize(static_cast<size_t>(d_.vocab->size()));
  for (const AddedToken& token : d_.added) {
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
    if (!token.normalized) {
      in_raw_text_.add(token, token.content);
      continue;
    }
    std::string text = token.content;
    for (const auto& step : d_.normalizers) step->apply(text);
    in_normalized_text_.add(token, text);
  }
  for (const int32_t id : d_.vocab->shadowed()) {  // special by name, whichever id has it
    if (is_special(d_.vocab->find(d_.vocab->text(id)))) special_[static_cast<size_t>(id)] = true;
  }
}

bool Pipeline::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < special_.size() && special_[static_cast<size_t>(id)];
}

std::vector<int32_t> Pipeline::encode(std::string_view text, SpecialTokens special) const {
  std::string repaired;
  if (!is_valid_utf8(text)) text = repaired = repair_utf8(text);
  std::unique_lock<std::mutex> lock(cache_mutex_, std::try_to_lock);
  if (lock.owns_lock() && cache_ == nullptr) cache_ = std::make_unique<WordCache>();
  WordCache* cache = lock.owns_lock() ? cache_.get() : nullptr;

  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (special == SpecialTokens::kAdd) ids = d_.prefix;
  std::vector<Segment> segments;
  in_raw_text_.split(text, segments);
  for (const Segment& segment : segments) {
    if (segment.id != kNoToken) {
      ids.push_back(segment.id);
    } else {
      encode_plain(segment.text, segment.text.data() == text.data(), cache, ids);
    }
  }
  if (special == SpecialTokens::kAdd) ids.insert(ids.end(), d_.suffix.begin(), d_.suffix.end());
  return ids;
}

void Pipeline::encode_plain(std::string_view text, bool at_start, WordCache* cache,
                            std::vector<int32_t>& out) const {
  std::string normalized;
  if (!d_.normalizers.empty()) {
    normalized = text;
    for (const auto& step : d_.normalizers) step->apply(normalized);
    text = normalized;
  }
  if (in_normalized_text_.empty()) return encode_normalized(text, at_start, cache, out);
  std::vector<Segment> segments;
  in_normalized_text_.split(text, segments);
  for (const Segment& segment : segments) {
    if (segment.id != kNoToken) {
      out.push_back(segment.id);
    } else {
      encode_normalized(segment.text, at_start && segment.text.data() == text.data(), cache, out);
    }
  }
}

void Pipeline::encode_normalized(std::string_view text, bool at_start, WordCache* cache,
                                 std::vector<int32_t>& out) const {
  if (text.empty()) return;
  PieceList list;
  list.pieces.push_back({text, at_start});
  for (const auto& step : d_.pre_tokenizers) step->split(list);
  for (const Piece& piece : list.pieces) d_.model->encode(piece.text, cache, out);
}

std::string Pipeline::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (!d_.vocab->has(id) || (skip_special && is_special(id))) continue;
    tokens.emplace_back(d_.vocab->text(id));
  }
  for (const auto& step : d_.decoders) step->apply(tokens);
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && d_.decoders.empty()) out += ' ';  // without a decoder tokens are words
    out += tokens[i];
  }
  return out;
}

std::string Pipeline::token_bytes(int32_t id, bool first) const {
  if (!d_.vocab->has(id)) return {};
  std::string token(d_.vocab->text(id));
  for (const auto& step : d_.decoders) step->apply_one(token, first);
  if (d_.decoders.empty() && !first) token.insert(0, " ");
  return token;
}

}  // namespace kvant::tokenizer
