// AddedTokens: the tokens that are found in the text itself, before any model sees it, with their
// flags.
//
// Matching is leftmost-longest over all of them, in two rounds as in the reference: those that are
// matched in the raw text, then, after normalizing, those that are matched in normalized text.
// Immutable after build().
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/hash_tables.h"

namespace kvant::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;   // matched in normalized text
};

// A part of a text: an added token, or what lies between two of them (id kNoToken).
struct Segment {
  int32_t id;
  std::string_view text;
};

// The added tokens of one round.
class AddedTokens {
 public:
  // `text` is what is matched: the content, or its normalized form. Empty texts are never matched.
  void add(const AddedToken& token, std::string_view text);
  bool empty() const { return tokens_.empty(); }
  // Appends the segments of `text`, in order, none of them empty.
  void split(std::string_view text, std::vector<Segment>& out) const;

 private:
  struct Found {
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  struct Node {
    int32_t token = -1;  // index into tokens_
  };
  Found longest_at(std::string_view text, size_t begin) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  KeyTable<uint32_t> edges_;  // (node << 8 | byte) to node
  std::array<bool, 256> starts_{};
};

}  // namespace kvant::tokenizer
