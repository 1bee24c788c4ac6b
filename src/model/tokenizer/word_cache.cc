#include <algorithm>
#include <cstring>

#include "model/tokenizer/token_model.h"

namespace kvant::tokenizer {

bool WordCache::get(std::string_view word, uint64_t hash, std::vector<int32_t>& out) const {
  const Slot& slot = slots_[hash & (kNumSlots - 1)];
  if (slot.word_bytes != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0)
    return false;
  out.insert(out.end(), slot.ids, slot.ids + slot.num_ids);
  return true;
}

void WordCache::put(std::string_view word, uint64_t hash, const int32_t* ids, size_t num_ids) {
  Slot& slot = slots_[hash & (kNumSlots - 1)];
  if (word.empty() || word.size() > sizeof slot.word || num_ids > std::size(slot.ids)) return;
  slot.word_bytes = static_cast<uint8_t>(word.size());
  slot.num_ids = static_cast<uint8_t>(num_ids);
  std::memcpy(slot.word, word.data(), word.size());
  std::copy(ids, ids + num_ids, slot.ids);
}

}  // namespace kvant::tokenizer
