// Reference attention: the textbook formula in double precision over rows given one by one. It is
// the specification that the paged driver is judged by, and it shares no code with it.
#pragma once

#include <cstdint>

namespace kvant {

// One query head against the keys and values that it sees, already chosen: position masks, windows
// and the read rule are the caller's.
struct ReferenceQuery {
  const float* query;   // [key_dim]
  const float* keys;    // [num_tokens] rows of key_dim
  const float* values;  // [num_tokens] rows of value_dim
  int64_t num_tokens;   // at least 1
  int64_t key_stride;   // floats from one token's key to the next
  int64_t value_stride;
  int key_dim;
  int value_dim;
  double scale;
  double soft_cap;  // 0: none
};

// out: [value_dim] = Σ softmax(score)_t · v_t. `weights`, if not null, receives the [num_tokens]
// probabilities.
void reference_attention(const ReferenceQuery& query, double* out, double* weights = nullptr);

}  // namespace kvant
