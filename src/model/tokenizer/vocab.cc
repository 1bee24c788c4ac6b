#include "model/tokenizer/vocab.h"

#include <algorithm>
#include <bit>

#include "model/tokenizer/hash_tables.h"

namespace kvant::tokenizer {

void Vocab::reserve(size_t num_tokens, size_t num_bytes) {
  bytes_.reserve(num_bytes);
  tokens_.reserve(num_tokens);
  if (slots_.empty()) slots_.resize(std::bit_ceil(num_tokens * 2 + 16));
}

void Vocab::set(int32_t id, std::string_view text) {
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  tokens_[index] = {bytes_.size(), static_cast<uint32_t>(text.size()), true};
  bytes_ += text;
  max_bytes_ = std::max(max_bytes_, text.size());
  if ((num_texts_ + 1) * 2 > slots_.size()) grow();
  Slot& slot = slots_[find_slot(text)];
  if (slot.id == kNoToken) {
    ++num_texts_;
  } else {
    shadowed_.push_back(slot.id);
  }
  slot = {static_cast<uint32_t>(hash_bytes(text) >> 32), id};
}

std::string_view Vocab::text(int32_t id) const {
  if (!has(id)) return {};
  const Token& token = tokens_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(token.begin, token.size);
}

int32_t Vocab::find(std::string_view text) const {
  return slots_.empty() ? kNoToken : slots_[find_slot(text)].id;
}

size_t Vocab::find_slot(std::string_view wanted) const {
  const uint64_t hash = hash_bytes(wanted);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  size_t i = hash & (slots_.size() - 1);
  while (slots_[i].id != kNoToken && (slots_[i].tag != tag || text(slots_[i].id) != wanted)) {
    i = (i + 1) & (slots_.size() - 1);
  }
  return i;
}

void Vocab::grow() {
  std::vector<Slot> old(std::bit_ceil(num_texts_ * 4 + 16));
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id != kNoToken) slots_[find_slot(text(slot.id))] = slot;
  }
}

}  // namespace kvant::tokenizer
