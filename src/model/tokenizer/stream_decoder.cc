// StreamDecoder: tokens in, whole characters out.
#include <string>

#include "model/tokenizer.h"
#include "model/tokenizer/unicode.h"

namespace kvant {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

std::string StreamDecoder::push(int32_t id) {
  if (tokenizer_.piece(id).empty() || (skip_special_ && tokenizer_.is_special(id))) return {};
  pending_ += tokenizer_.token_bytes(id, first_);
  first_ = false;
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const tokenizer::Utf8Step step = tokenizer::utf8_step(rest);
    if (step.unit == tokenizer::Utf8Unit::kUnfinished) break;
    out += step.unit == tokenizer::Utf8Unit::kCharacter ? rest.substr(0, step.length)
                                                        : tokenizer::kReplacement;
    rest.remove_prefix(step.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string StreamDecoder::flush() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return cut ? std::string(tokenizer::kReplacement) : std::string();
}

}  // namespace kvant
