// TokenModel: turns one piece of text into ids. BPE by merge rank or by score, and unigram.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/hash_tables.h"
#include "model/tokenizer/vocab.h"

namespace kvant::tokenizer {

class WordCache;

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of `piece`. `cache` may be nullptr; a cache belongs to one model.
  virtual void encode(std::string_view piece, WordCache* cache,
                      std::vector<int32_t>& out) const = 0;
};

// Ids of short words seen before: one slot per hash value, the newest word wins. Fixed size, not
// thread-safe.
class WordCache {
 public:
  WordCache() : slots_(kNumSlots) {}
  // Appends the ids of `word` and returns true if it is there.
  bool get(std::string_view word, uint64_t hash, std::vector<int32_t>& out) const;
  void put(std::string_view word, uint64_t hash, const int32_t* ids, size_t num_ids);

 private:
  static constexpr size_t kNumSlots = 1 << 14;  // 2 MiB; English text hits 97 % of its words
  struct Slot {                                 // two cache lines
    uint8_t word_bytes = 0;
    uint8_t num_ids = 0;
    char word[46];
    int32_t ids[20];
  };
  std::vector<Slot> slots_;
};

// How BPE writes what it can't find.
enum class Alphabet : uint8_t {
  kCharacters,
  kBytes
};  // kBytes: pieces are raw bytes, the vocabulary is spelled

struct BpeOptions {
  Alphabet alphabet = Alphabet::kCharacters;
  int32_t unknown = kNoToken;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a piece that is a token as a whole is that token
};

class Bpe final : public TokenModel {
 public:
  // `vocab` outlives the model and doesn't change. Merges come from add_merge(), or from
  // order_by_score().
  Bpe(const Vocab& vocab, const BpeOptions& options);

  // The pair merges into `merged`; earlier calls win over later ones. A pair that is there already
  // is ignored.
  void reserve_merges(size_t count) { merges_.reserve(count); }
  void add_merge(int32_t left, int32_t right, int32_t merged);
  // Instead of merges: any two tokens merge whose texts together are a token; the higher score
  // first, then the longer left part. One score per id. What generated merges of SentencePiece
  // vocabularies say, without the list.
  void order_by_score(const std::vector<float>& scores);

  void encode(std::string_view piece, WordCache* cache, std::vector<int32_t>& out) const override;

 private:
  struct Symbol {
    int32_t id;
    uint32_t begin;
    uint32_t bytes;
    uint32_t chars;
    bool merges;  // false for bytes and unknowns of score order, whose token's text isn't the
                  // piece's
  };
  struct Merge {
    uint64_t priority = ~uint64_t{0};  // lower goes first; all ones: no merge
    int32_t id = kNoToken;
  };
  struct Rule {
    uint32_t rank = 0;
    int32_t id = kNoToken;
  };
  struct Candidate;
  struct Scratch;

  void find_unbreakable();
  bool breaks_before_mark(std::string_view piece, size_t mark) const;
  void encode_word(std::string_view word, WordCache* cache, std::vector<int32_t>& out) const;
  void spell(std::string_view word, std::vector<Symbol>& symbols) const;
  void spell_unknown(std::string_view word, size_t begin, size_t end,
                     std::vector<Symbol>& symbols) const;
  Merge merge_of(std::string_view word, const Symbol& left, const Symbol& right) const;
  void merge_short(std::string_view word, Scratch& scratch) const;
  void merge_long(std::string_view word, Scratch& scratch) const;

  const Vocab& vocab_;
  const BpeOptions options_;
  std::array<int32_t, 256> byte_ids_;
  bool has_byte_tokens_ = true;
  KeyTable<Rule> merges_;
  std::vector<uint32_t> score_rank_;   // by id; empty: merges_ rule
  std::vector<char32_t> unbreakable_;  // characters that some token has before U+2581, sorted
  bool can_break_ = false;
};

// Unigram language model: the segmentation of highest total log probability (Viterbi).
class Unigram final : public TokenModel {
 public:
  Unigram(const Vocab& vocab, std::vector<double> scores, int32_t unknown, bool byte_fallback);
  void encode(std::string_view piece, WordCache* cache, std::vector<int32_t>& out) const override;

 private:
  struct Node {
    int32_t id = kNoToken;
  };
  struct Best {
    double score = 0;
    size_t begin = 0;
    int32_t id = kNoToken;
    bool reached = false;
  };
  std::vector<Best> best_paths(std::string_view piece) const;
  void append_unknown(std::string_view text, std::vector<int32_t>& out) const;

  const Vocab& vocab_;
  std::vector<double> scores_;
  int32_t unknown_;
  double unknown_score_;
  std::array<int32_t, 256> byte_ids_;
  bool byte_fallback_;
  std::vector<Node> nodes_{1};
  KeyTable<uint32_t> edges_;  // (node << 8 | byte) to node
};

// The ids of the tokens "<0x00>" to "<0xFF>"; kNoToken where one is missing.
std::array<int32_t, 256> find_byte_tokens(const Vocab& vocab);

}  // namespace kvant::tokenizer
