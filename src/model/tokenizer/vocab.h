// Vocab: the tokens of a model by id, and ids by text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::tokenizer {

inline constexpr int32_t kNoToken = -1;

class Vocab {
 public:
  void reserve(size_t num_tokens, size_t num_bytes);
  // Sets the text of `id` (any order, gaps allowed). Where two ids have one text, the later call
  // owns it in find(). REQUIRES id >= 0, and that `id` is set once.
  void set(int32_t id, std::string_view text);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // highest id + 1
  bool has(int32_t id) const {
    return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].set;
  }
  std::string_view text(int32_t id) const;         // empty for an id that isn't there
  int32_t find(std::string_view text) const;       // kNoToken: not there
  size_t max_bytes() const { return max_bytes_; }  // of the longest token
  // Ids whose text a later call gave to another id.
  const std::vector<int32_t>& shadowed() const { return shadowed_; }

 private:
  struct Token {
    size_t begin = 0;
    uint32_t size = 0;
    bool set = false;
  };
  struct Slot {
    uint32_t tag =
        0;  // upper bits of the hash: most wrong slots are passed without touching their text
    int32_t id = kNoToken;
  };
  size_t find_slot(std::string_view text) const;
  void grow();

  std::string bytes_;  // all texts, one after another
  std::vector<Token> tokens_;
  std::vector<Slot> slots_;
  std::vector<int32_t> shadowed_;
  size_t num_texts_ = 0;
  size_t max_bytes_ = 0;
};

}  // namespace kvant::tokenizer
