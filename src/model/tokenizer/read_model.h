// Reads the model and added_tokens entries of a tokenizer.json: vocabulary, merges, scores, flags.
#pragma once

#include "model/tokenizer/json_node.h"
#include "model/tokenizer/pipeline.h"

namespace kvant::tokenizer {

// More tokens than any model has; and the priority of a merge has 22 bits for an id.
inline constexpr int64_t kMaxTokens = 1 << 22;

// Fills vocab, model and the first part of summary.
Status read_model(const JsonNode& node, Alphabet alphabet, Description& out);
// Fills added, and puts tokens that the vocabulary lacks into it. Goes between the vocabulary and
// what uses ids.
Status read_added_tokens(const JsonNode& node, Description& out);

}  // namespace kvant::tokenizer
