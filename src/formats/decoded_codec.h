// What a format costs with nothing else rounded: the products of its pages in double, from decoded
// rows.
//
// The kernels quantize queries and probabilities for their integer products. This codec does not,
// so the difference between the two is what those products add (the precision rule,
// docs/numerics.md). It is slow, and only for judging.
#pragma once

#include <memory>

#include "formats/codec.h"

namespace kvant {

// bind_codec(), but for the products: the same bytes, the same decoded rows.
Result<std::unique_ptr<Codec>> bind_decoded_codec(const FormatInfo& format,
                                                  const CodecBinding& binding);

}  // namespace kvant
