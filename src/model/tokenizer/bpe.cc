#include <algorithm>
#include <numeric>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/token_model.h"
#include "model/tokenizer/unicode.h"

namespace kvant::tokenizer {
namespace {

// Up to this many symbols a scan for the best pair beats a heap.
constexpr size_t kMaxShortWord = 40;

// Fields of a score-ordered priority, high to low: score rank, left length, right length (longer
// first), id.
constexpr int kIdBits = 22;
constexpr int kLengthBits = 10;
constexpr uint64_t kMaxLength = (1u << kLengthBits) - 1;

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

// A possible merge of the symbol at `position` with its right neighbour, as they were when it was
// pushed.
struct Bpe::Candidate {
  uint64_t priority;
  uint32_t position;
  int32_t left;
  int32_t right;
  int32_t merged;
  bool operator<(const Candidate& other) const {  // std::push_heap keeps the largest on top
    return priority != other.priority ? priority > other.priority : position > other.position;
  }
};

struct Bpe::Scratch {
  std::vector<Symbol> symbols;
  std::vector<Merge> merges;  // of symbol i with symbol i + 1
  std::vector<Candidate> heap;
  std::vector<uint32_t> next, previous;
};

std::array<int32_t, 256> find_byte_tokens(const Vocab& vocab) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::array<int32_t, 256> ids;
  std::string token = "<0x00>";
  for (size_t byte = 0; byte < 256; ++byte) {
    token[3] = kHex[byte >> 4];
    token[4] = kHex[byte & 15];
    ids[byte] = vocab.find(token);
  }
  return ids;
}

Bpe::Bpe(const Vocab& vocab, const BpeOptions& options) : vocab_(vocab), options_(options) {
  if (options_.alphabet == Alphabet::kBytes) {
    for (size_t byte = 0; byte < 256; ++byte) {
      byte_ids_[byte] = vocab.find(spell_bytes(std::string(1, static_cast<char>(byte))));
    }
  } else {
    byte_ids_ = find_byte_tokens(vocab);
    find_unbreakable();
  }
  has_byte_tokens_ = std::find(byte_ids_.begin(), byte_ids_.end(), kNoToken) == byte_ids_.end();
}

// Where no token holds X followed by U+2581, no merge crosses from X to U+2581: a text without
// other cuts is cut there, so that its words can be cached and a book isn't one heap.
void Bpe::find_unbreakable() {
  can_break_ = vocab_.find(kMetaspace) != kNoToken;
  for (int32_t id = 0; id < vocab_.size() && can_break_; ++id) {
    const std::string_view text = vocab_.text(id);
    for (size_t at = text.find(kMetaspace, 1); at != std::string_view::npos;
         at = text.find(kMetaspace, at + 1)) {
      size_t begin = at - 1;
      while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
      unbreakable_.push_back(next_char(text, begin));
    }
  }
  std::sort(unbreakable_.begin(), unbreakable_.end());
  unbreakable_.erase(std::unique(unbreakable_.begin(), unbreakable_.end()), unbreakable_.end());
}

void Bpe::add_merge(int32_t left, int32_t right, int32_t merged) {
  merges_.insert(pair_key(left, right), {static_cast<uint32_t>(merges_.size()), merged});
}

void Bpe::order_by_score(const std::vector<float>& scores) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  score_rank_.resize(scores.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && scores[order[i]] < scores[order[i - 1]]) ++rank;
    score_rank_[order[i]] = rank;
  }
}

void Bpe::encode(std::string_view piece, WordCache* cache, std::vector<int32_t>& out) const {
  if (!can_break_) return encode_word(piece, cache, out);
  size_t done = 0;
  for (size_t mark = piece.find(kMetaspace, 1); mark != std::string_view::npos;
       mark = piece.find(kMetaspace, mark + 1)) {
    if (!breaks_before_mark(piece, mark)) continue;
    encode_word(piece.substr(done, mark - done), cache, out);
    done = mark;
  }
  encode_word(piece.substr(done), cache, out);
}

bool Bpe::breaks_before_mark(std::string_view piece, size_t mark) const {
  size_t begin = mark - 1;
  while (begin > 0 && (static_cast<unsigned char>(piece[begin]) & 0xc0) == 0x80) --begin;
  return !std::binary_search(unbreakable_.begin(), unbreakable_.end(), next_char(piece, begin));
}

void Bpe::encode_word(std::string_view word, WordCache* cache, std::vector<int32_t>& out) const {
  if (word.empty()) return;
  const uint64_t hash = hash_bytes(word);
  if (cache != nullptr && cache->get(word, hash, out)) return;
  const size_t begin = out.size();
  const int32_t whole = !options_.ignore_merges                 ? kNoToken
                        : options_.alphabet == Alphabet::kBytes ? vocab_.find(spell_bytes(word))
                                                                : vocab_.find(word);
  if (whole != kNoToken) {
    out.push_back(whole);
  } else {
    thread_local Scratch scratch;
    spell(word, scratch.symbols);
    if (scratch.symbols.size() <= kMaxShortWord) {
      merge_short(word, scratch);
    } else {
      merge_long(word, scratch);
    }
    for (const Symbol& symbol : scratch.symbols) {
      if (symbol.bytes > 0) out.push_back(symbol.id);
    }
  }
  if (cache != nullptr) cache->put(word, hash, out.data() + begin, out.size() - begin);
}

void Bpe::spell(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  if (options_.alphabet == Alphabet::kBytes) {
    for (size_t i = 0; i < word.size(); ++i) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(word[i])];
      if (id != kNoToken) {
        symbols.push_back({id, static_cast<uint32_t>(i), 1, 1, true});
      } else {
        spell_unknown(word, i, i + 1, symbols);
      }
    }
    return;
  }
  for (size_t pos = 0; pos < word.size();) {
    const size_t begin = pos;
    pos += utf8_length(static_cast<unsigned char>(word[pos]));
    const int32_t id = vocab_.find(word.substr(begin, pos - begin));
    if (id != kNoToken) {
      symbols.push_back(
          {id, static_cast<uint32_t>(begin), static_cast<uint32_t>(pos - begin), 1, true});
    } else {
      spell_unknown(word, begin, pos, symbols);
    }
  }
}

void Bpe::spell_unknown(std::string_view word, size_t begin, size_t end,
                        std::vector<Symbol>& symbols) const {
  if (options_.byte_fallback && has_byte_tokens_) {
    for (size_t i = begin; i < end; ++i) {
      symbols.push_back(
          {byte_ids_[static_cast<unsigned char>(word[i])], static_cast<uint32_t>(i), 1, 1, false});
    }
    return;
  }
  if (options_.unknown == kNoToken)
    return;  // no unknown token: the character is left out, as in the reference
  if (options_.fuse_unknown && !symbols.empty() && !symbols.back().merges &&
      symbols.back().id == options_.unknown) {
    symbols.back().bytes += static_cast<uint32_t>(end - begin);
    return;
  }
  symbols.push_back({options_.unknown, static_cast<uint32_t>(begin),
                     static_cast<uint32_t>(end - begin), 1, false});
}

Bpe::Merge Bpe::merge_of(std::string_view word, const Symbol& left, const Symbol& right) const {
  if (score_rank_.empty()) {
    const Rule* rule = merges_.find(pair_key(left.id, right.id));
    return rule == nullptr ? Merge{} : Merge{rule->rank, rule->id};
  }
  if (!left.merges || !right.merges || left.bytes + right.bytes > vocab_.max_bytes()) return {};
  const int32_t id = vocab_.find(word.substr(left.begin, left.bytes + right.bytes));
  if (id == kNoToken) return {};
  const uint64_t shorter_left = kMaxLength - std::min<uint64_t>(left.chars, kMaxLength);
  const uint64_t shorter_right = kMaxLength - std::min<uint64_t>(right.chars, kMaxLength);
  const uint64_t rank = score_rank_[static_cast<size_t>(id)];
  return {((rank << kLengthBits | shorter_left) << kLengthBits | shorter_right) << kIdBits |
              static_cast<uint64_t>(id),
          id};
}

void Bpe::merge_short(std::string_view word, Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Merge>& merges = scratch.merges;
  merges.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    merges.push_back(merge_of(word, symbols[i], symbols[i + 1]));
  while (!merges.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < merges.size(); ++i) {
      if (merges[i].priority < merges[best].priority) best = i;
    }
    if (merges[best].id == kNoToken) return;
    Symbol& left = symbols[best];
    const Symbol& right = symbols[best + 1];
    left = {merges[best].id, left.begin, left.bytes + right.bytes, left.chars + right.chars, true};
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    merges.erase(merges.begin() + static_cast<ptrdiff_t>(best));
    if (best > 0) merges[best - 1] = merge_of(word, symbols[best - 1], symbols[best]);
    if (best < merges.size()) merges[best] = merge_of(word, symbols[best], symbols[best + 1]);
  }
}

// Symbols are a linked list over their first positions; a merged-away symbol keeps 0 bytes.
void Bpe::merge_long(std::string_view word, Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  const auto count = static_cast<uint32_t>(symbols.size());
  scratch.heap.clear();
  scratch.next.resize(count);
  scratch.previous.resize(count);
  const auto push = [&](uint32_t left, uint32_t right) {
    const Merge merge = merge_of(word, symbols[left], symbols[right]);
    if (merge.id == kNoToken) return;
    scratch.heap.push_back({merge.priority, left, symbols[left].id, symbols[right].id, merge.id});
    std::push_heap(scratch.heap.begin(), scratch.heap.end());
  };
  for (uint32_t i = 0; i < count; ++i) {
    scratch.next[i] = i + 1;
    scratch.previous[i] = i - 1;  // of the first: never read
    if (i + 1 < count) push(i, i + 1);
  }
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end());
    const Candidate top = scratch.heap.back();
    scratch.heap.pop_back();
    const uint32_t left = top.position;
    const uint32_t right = scratch.next[left];
    if (symbols[left].bytes == 0 || right >= count) continue;
    if (symbols[left].id != top.left || symbols[right].id != top.right) continue;
    symbols[left] = {top.merged, symbols[left].begin, symbols[left].bytes + symbols[right].bytes,
                     symbols[left].chars + symbols[right].chars, true};
    symbols[right].bytes = 0;
    const uint32_t after = scratch.next[right];
    scratch.next[left] = after;
    if (after < count) {
      scratch.previous[after] = left;
      push(left, after);
    }
    if (left > 0) push(scratch.previous[left], left);
  }
}

}  // namespace kvant::tokenizer
