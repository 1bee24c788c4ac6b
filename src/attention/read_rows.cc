#include "attention/read_rows.h"

#include <algorithm>

#include "base/bytes.h"

namespace kvant {
namespace {

void decode_rows(const Codec& codec, const std::byte* page, int first_slot, const RowsOut& out) {
  const auto dim = static_cast<size_t>(out.dim);
  AlignedArray<float> rows(dim * kPageTokens);
  codec.decode(page, rows.data());
  for (size_t r = 0; r < static_cast<size_t>(out.num_rows); ++r) {
    std::copy_n(rows.data() + (static_cast<size_t>(first_slot) + r) * dim, dim,
                out.data + r * out.stride);
  }
}

// Values that are a range of the keys: channels [offset, offset + dim) of a K page, whose channels
// are 64 elements each.
void load_key_range(const LayerFormat& layer, const std::byte* key, int first_slot,
                    const RowsOut& out) {
  const size_t skipped =
      static_cast<size_t>(layer.value_offset) * kPageTokens * float_bytes(layer.key.exact_type);
  load_key_rows(layer.key.exact_type, key + skipped, first_slot, out);
}

}  // namespace

void read_rows(const LayerFormat& layer, const PageRecord& page, int head, Side side,
               int first_slot, const RowsOut& out) {
  const PartBytes& parts = page.sealed ? layer.sealed : layer.exact;
  const std::byte* key = page.record + key_offset(parts, head);
  const std::byte* value = page.record + value_offset(parts, head);
  const SideFormat& format = side == Side::kKey ? layer.key : layer.value;
  if (side == Side::kValue && layer.value_from_key) {
    load_key_range(layer, key, first_slot, out);
  } else if (page.sealed && !format.codecs.empty()) {
    decode_rows(*format.codecs[static_cast<size_t>(head)], side == Side::kKey ? key : value,
                first_slot, out);
  } else if (side == Side::kKey) {
    load_key_rows(format.exact_type, key, first_slot, out);
  } else {
    load_value_rows(format.exact_type, value, first_slot, out);
  }
}

}  // namespace kvant
