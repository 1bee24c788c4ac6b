// Reads the normalizer, pre_tokenizer, decoder and post_processor entries of a tokenizer.json.
#pragma once

#include "model/tokenizer/json_node.h"
#include "model/tokenizer/pipeline.h"

namespace kvant::tokenizer {

Status read_normalizer(const JsonNode& node, Normalizers& out);

struct PreTokenizerEntry {
  PreTokenizers steps;
  bool byte_level =
      false;  // the last step is ByteLevel: pieces are raw bytes for a spelled vocabulary
};
Status read_pre_tokenizer(const JsonNode& node, PreTokenizerEntry& out);

Status read_decoder(const JsonNode& node, Decoders& out);
// Fills prefix and suffix.
Status read_post_processor(const JsonNode& node, Description& out);

}  // namespace kvant::tokenizer
