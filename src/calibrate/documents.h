// Documents: calibration text, drawn by seed from files of any size.
//
// A .jsonl file holds one document a line: an object with `text`, or with `messages` of `role` and
// `content` for the model's chat template. Any other file is plain text, cut into documents at line
// breaks. Files are read once, line by line; what is kept is a uniform sample without replacement
// (Vitter's algorithm R, 1985), in the order of the files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer.h"

namespace kvant {

struct Document {
  std::string text;                   // as it stands, or
  std::vector<ChatMessage> messages;  // for the chat template, if not empty
  std::string place;                  // "chat.jsonl: line 7"
};

struct DocumentRequest {
  std::vector<std::string> paths;
  int64_t samples = 0;
  uint64_t seed = 0;
  size_t max_bytes = 0;   // of one document's text; what is longer is cut, or split in plain text
  bool skip_bad = false;  // lines that aren't documents are counted, not an error
};

struct Documents {
  std::vector<Document> sample;
  int64_t seen = 0;     // documents of all files
  int64_t skipped = 0;  // bad lines
  std::string digest;   // of the sample's bytes, 32 hexadecimal digits
};

// not_found or io with the path; corrupt with file, line and what is wrong with it;
// invalid_argument where there is no document at all.
Result<Documents> sample_documents(const DocumentRequest& request);

}  // namespace kvant
