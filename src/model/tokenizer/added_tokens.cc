#include "model/tokenizer/added_tokens.h"

#include <algorithm>

#include "model/tokenizer/unicode.h"
#include "model/tokenizer/vocab.h"

namespace kvant::tokenizer {
namespace {

// The last character of `text`, and where it starts. REQUIRES a text that isn't empty.
char32_t last_char(std::string_view text, size_t& begin) {
  begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  size_t pos = begin;
  return next_char(text, pos);
}

bool ends_with_word(std::string_view text) {
  size_t begin;
  return !text.empty() && is_word(last_char(text, begin));
}

bool starts_with_word(std::string_view text) {
  size_t pos = 0;
  return !text.empty() && is_word(next_char(text, pos));
}

size_t without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    size_t begin;
    if (!is_whitespace(last_char(text, begin))) break;
    text = text.substr(0, begin);
  }
  return text.size();
}

size_t leading_space(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    size_t next = pos;
    if (!is_whitespace(next_char(text, next))) break;
    pos = next;
  }
  return pos;
}

}  // namespace

void AddedTokens::add(const AddedToken& token, std::string_view text) {
  if (text.empty()) return;
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const uint64_t key = uint64_t{node} << 8 | byte;
    if (const uint32_t* next = edges_.find(key)) {
      node = *next;
    } else {
      nodes_.push_back({});
      node = static_cast<uint32_t>(nodes_.size() - 1);
      edges_.insert(key, node);
    }
  }
  starts_[static_cast<unsigned char>(text[0])] = true;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

AddedTokens::Found AddedTokens::longest_at(std::string_view text, size_t begin) const {
  Found found;
  uint32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const uint32_t* next = edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (next == nullptr) break;
    node = *next;
    if (nodes_[node].token >= 0) found = {i + 1, &tokens_[static_cast<size_t>(nodes_[node].token)]};
  }
  return found;
}

void AddedTokens::split(std::string_view text, std::vector<Segment>& out) const {
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    const Found found = longest_at(text, i);
    if (found.token == nullptr) {
      ++i;
      continue;
    }
    const size_t matched_from = i;
    i = found.end;  // also where a rejected match ends: the reference goes on behind it
    const AddedToken& token = *found.token;
    if (token.single_word && (ends_with_word(text.substr(0, matched_from)) ||
                              starts_with_word(text.substr(found.end)))) {
      continue;
    }
    size_t begin = matched_from, end = found.end;
    // White space that an earlier token took isn't looked at again: tokens may be white space.
    if (token.lstrip && begin > done)
      begin = done + without_trailing_space(text.substr(done, begin - done));
    begin = std::max(begin, done);
    if (token.rstrip && end >= done) end += leading_space(text.substr(end));
    if (begin > done) out.push_back({kNoToken, text.substr(done, begin - done)});
    out.push_back({token.id, text.substr(begin, std::max(begin, end) - begin)});
    done = std::max(done, end);
  }
  if (done < text.size()) out.push_back({kNoToken, text.substr(done)});
}

}  // namespace kvant::tokenizer
