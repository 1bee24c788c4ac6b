#include "cli/side_bits.h"

namespace kvant::cli {
namespace {

Status add_side(SideBits& bits, std::string_view format_name, Side side, const CacheLayer& layer,
                int dim) {
  KVANT_ASSIGN(const FormatInfo* format, find_format(format_name));
  KVANT_ASSIGN(const double sealed, sealed_bits(*format, side, dim));
  const double elements = static_cast<double>(layer.num_kv_heads) * dim;
  bits.nominal += format->nominal_bits * elements;
  bits.sealed += sealed * elements;
  bits.bytes_per_token += sealed * elements / 8;
  bits.elements += elements;
  return {};
}

}  // namespace

Result<SideBits> side_bits(std::span<const CacheLayer> layers, Side side) {
  SideBits bits;
  for (const CacheLayer& layer : layers) {
    if (layer.num_kv_heads == 0 || layer.shares >= 0) continue;
    if (side == Side::kKey) {
      KVANT_TRY(add_side(bits, layer.formats.key, side, layer, layer.key_dim));
    } else if (layer.value_source == ValueSource::kOwnStream) {
      KVANT_TRY(add_side(bits, layer.formats.value, side, layer, layer.value_dim));
    }
  }
  if (bits.elements > 0) {
    bits.nominal /= bits.elements;
    bits.sealed /= bits.elements;
  }
  return bits;
}

}  // namespace kvant::cli
