// What the fuzz targets do with a tokenizer that loads: all of it must end, and streaming must give
// UTF-8.
#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

#include "model/tokenizer.h"
#include "model/tokenizer/unicode.h"

namespace kvant::test {

inline void use_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text, SpecialTokens::kAdd);
  if (ids != tokenizer.encode(text, SpecialTokens::kAdd)) std::abort();  // the second time cached
  (void)tokenizer.decode(ids, false);
  (void)tokenizer.decode(ids, true);
  StreamDecoder stream(tokenizer);
  std::string out;
  for (const int32_t id : ids) out += stream.push(id);
  for (const int32_t id : {0, 1, tokenizer.vocab_size() - 1, tokenizer.vocab_size(), -1})
    out += stream.push(id);
  out += stream.flush();
  if (!tokenizer::is_valid_utf8(out)) std::abort();
}

}  // namespace kvant::test
