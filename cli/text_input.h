// TextInput: the tokens that compare and perplexity run. A text is read and tokenized from its
// start, as far as the tokens that are wanted need it and no further: its end may be a terabyte
// away, or nowhere.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/output.h"
#include "engine/settings.h"
#include "model/model.h"

namespace kvant::cli {

// Token ids from a file: numbers, or the JSON that kvant tokenize writes.
Result<std::vector<int32_t>> read_ids(const std::string& path);

// The built-in text; it is cut inside a line.
extern const std::string_view kSampleText;

class TextInput {
 public:
  // --text, --ids-file or the built-in sample. Opens the file, so that a missing one is found
  // before a model is loaded.
  static Result<TextInput> open(const Settings& settings);

  const std::string& source() const { return source_; }  // for messages

  // The first `count` ids of the whole input's, fewer where it has fewer. invalid_argument where a
  // long text has no place to cut it at.
  Result<std::vector<int32_t>> first_ids(const Tokenizer& tokenizer, int64_t count);
  // The text that the last ids came from.
  std::string_view used_text() const { return std::string_view(text_).substr(0, used_); }
  // The ids that every window of a text begins with: BOS, where the model wants one.
  std::vector<int32_t> window_prefix(const Tokenizer& tokenizer) const;

 private:
  Status read_to(size_t bytes);  // or to the end

  std::string source_;
  std::vector<int32_t> ids_;  // instead of text, if not empty
  std::string text_;          // what was read of it
  size_t used_ = 0;           // and tokenized
  File file_;                 // the rest; null: there is none
};

// Where the beginning of a longer text may be cut so that its ids, apart from the last few, are
// those that the whole text begins with: behind the last line break, else before the last blank,
// that stands alone between two characters that are no white space. 0: nowhere.
//
// Why there: pre-tokenizers go from left to right and begin a piece with what follows a line break,
// or with a blank behind a character; tokens don't cross such places; and the white space is too
// short for a rule that asks what follows a run of it. A tokenizer that is different in one of
// these is different in the last few ids.
size_t safe_cut(std::string_view text);
// How many ids before a cut aren't believed all the same: for a special token that was spelled
// across it, and for what the tokenizer puts behind a text.
inline constexpr size_t kDistrustedIds = 64;

// The ids to run: --windows times --context of them, each window with its prefix. Fewer ids are an
// error where the number was asked for, else one shorter window and a note.
struct WindowedText {
  std::vector<int32_t> ids;
  int64_t context = 0;  // ids of one window
};
Result<WindowedText> read_windows(const Settings& settings, TextInput& input, const Model& model);

// invalid_argument if an id is outside the model's vocabulary.
Status check_ids(std::span<const int32_t> ids, const ModelInfo& info);

}  // namespace kvant::cli
