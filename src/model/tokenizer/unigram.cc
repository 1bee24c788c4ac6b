#include <algorithm>
#include <limits>

#include "model/tokenizer/token_model.h"
#include "model/tokenizer/unicode.h"

namespace kvant::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the least likely piece, as in SentencePiece

}  // namespace

Unigram::Unigram(const Vocab& vocab, std::vector<double> scores, int32_t unknown,
                 bool byte_fallback)
    : vocab_(vocab),
      scores_(std::move(scores)),
      unknown_(unknown),
      byte_ids_(find_byte_tokens(vocab)),
      byte_fallback_(byte_fallback) {
  byte_fallback_ =
      byte_fallback && std::find(byte_ids_.begin(), byte_ids_.end(), kNoToken) == byte_ids_.end();
  double least = std::numeric_limits<double>::infinity();
  for (const double score : scores_) least = std::min(least, score);
  unknown_score_ = least - kUnknownPenalty;
  for (int32_t id = 0; id < static_cast<int32_t>(scores_.size()); ++id) {
    uint32_t node = 0;
    for (const char c : vocab.text(id)) {
      const uint64_t key = uint64_t{node} << 8 | static_cast<unsigned char>(c);
      if (const uint32_t* next = edges_.find(key)) {
        node = *next;
        continue;
      }
      nodes_.push_back({});
      node = static_cast<uint32_t>(nodes_.size() - 1);
      edges_.insert(key, node);
    }
    if (node != 0) nodes_[node].id = vocab.find(vocab.text(id));
  }
}

// best[i] is the best way to have segmented piece[0, i).
std::vector<Unigram::Best> Unigram::best_paths(std::string_view piece) const {
  std::vector<Best> best(piece.size() + 1);
  const auto offer = [&](size_t end, double score, size_t begin, int32_t id) {
    if (!best[end].reached || score > best[end].score) best[end] = {score, begin, id, true};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const size_t next = begin + utf8_length(static_cast<unsigned char>(piece[begin]));
    bool single = false;  // a token is exactly this character
    uint32_t node = 0;
    for (size_t i = begin; i < piece.size(); ++i) {
      const uint32_t* edge =
          edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(piece[i]));
      if (edge == nullptr) break;
      node = *edge;
      const int32_t id = nodes_[node].id;
      if (id == kNoToken) continue;
      offer(i + 1, best[begin].score + scores_[static_cast<size_t>(id)], begin, id);
      single = single || i + 1 == next;
    }
    if (!single) offer(next, best[begin].score + unknown_score_, begin, unknown_);
    begin = next;
  }
  return best;
}

void Unigram::append_unknown(std::string_view text, std::vector<int32_t>& out) const {
  if (const int32_t id = vocab_.find(text);
      id != kNoToken) {  // the unknown token's own text, or a run that is one
    out.push_back(id);
  } else if (byte_fallback_) {
    for (const char c : text) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  } else if (unknown_ != kNoToken) {
    out.push_back(unknown_);
  }
}

void Unigram::encode(std::string_view piece, WordCache* cache, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  const uint64_t hash = hash_bytes(piece);
  if (cache != nullptr && cache->get(piece, hash, out)) return;
  const size_t begin = out.size();
  const std::vector<Best> best = best_paths(piece);
  std::vector<Best> path;  // last segment first
  std::vector<size_t> ends;
  for (size_t end = piece.size(); end > 0; end = best[end].begin) {
    path.push_back(best[end]);
    ends.push_back(end);
  }
  for (size_t i = path.size(); i-- > 0;) {
    if (path[i].id != unknown_) {
      out.push_back(path[i].id);
      continue;
    }
    const size_t from = path[i].begin;  // unknown characters in a row are one
    while (i > 0 && path[i - 1].id == unknown_) --i;
    append_unknown(piece.substr(from, ends[i] - from), out);
  }
  if (cache != nullptr) cache->put(piece, hash, out.data() + begin, out.size() - begin);
}

}  // namespace kvant::tokenizer
