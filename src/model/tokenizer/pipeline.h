// Pipeline: the tokenizer that a description (from tokenizer.json or from a GGUF file) adds up to.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/steps.h"
#include "model/tokenizer/token_model.h"

namespace kvant::tokenizer {

// All that a file says about its tokenizer.
struct Description {
  std::unique_ptr<Vocab> vocab = std::make_unique<Vocab>();
  std::unique_ptr<TokenModel> model;  // reads *vocab
  std::vector<AddedToken> added;
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  Decoders decoders;
  std::vector<int32_t> prefix, suffix;  // what SpecialTokens::kAdd puts around a text
  std::optional<int32_t> bos, eos;
  std::vector<int32_t> end_of_generation;
  std::string chat_template;
  std::string summary;
};

class Pipeline final : public Tokenizer {
 public:
  // REQUIRES a model, and that every id in `description` is in its vocabulary.
  explicit Pipeline(Description description);

  std::vector<int32_t> encode(std::string_view text, SpecialTokens special) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  std::string token_bytes(int32_t id, bool first) const override;
  std::string_view piece(int32_t id) const override { return d_.vocab->text(id); }
  bool is_special(int32_t id) const override;
  int vocab_size() const override { return d_.vocab->size(); }
  std::optional<int32_t> bos() const override { return d_.bos; }
  std::optional<int32_t> eos() const override { return d_.eos; }
  std::span<const int32_t> end_of_generation() const override { return d_.end_of_generation; }
  std::string_view chat_template() const override { return d_.chat_template; }
  std::string description() const override { return d_.summary; }

 private:
  void encode_plain(std::string_view text, bool at_start, WordCache* cache,
                    std::vector<int32_t>& out) const;
  void encode_normalized(std::string_view text, bool at_start, WordCache* cache,
                         std::vector<int32_t>& out) const;

  Description d_;
  AddedTokens in_raw_text_, in_normalized_text_;
  std::vector<bool> special_;  // by id
  mutable std::mutex
      cache_mutex_;  // held by the one encode() that uses the cache; others go without
  mutable std::unique_ptr<WordCache> cache_;
};

// Ids of tokens whose name says "the answer ends here" in some family ("<|im_end|>",
// "<end_of_turn>", …) among the special ones, appended to `ids` without repeats.
void append_known_ends(const Vocab& vocab, const std::vector<AddedToken>& added,
                       std::vector<int32_t>& ids);

}  // namespace kvant::tokenizer
