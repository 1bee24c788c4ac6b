// CalibrationText: the token sequences that kvant calibrate reads, documents of files or tokens
// drawn at random, each cut to its length.
#pragma once

#include <string>
#include <vector>

#include "calibrate/documents.h"
#include "engine/settings.h"
#include "model/model.h"

namespace kvant::cli {

class CalibrationText {
 public:
  // `files`: --data or --held-out. With --source random it names none.
  static Result<CalibrationText> open(const Settings& settings, const std::string& files);

  size_t size() const { return random_ ? num_random_ : documents_.sample.size(); }
  std::string place(size_t index) const;  // for messages
  // Not past what the model takes; whatever can't be read as --data's lines say.
  Result<std::vector<int32_t>> tokens(size_t index, const Model& model) const;
  const std::string& digest() const { return documents_.digest; }
  const Documents& documents() const { return documents_; }  // none where tokens are random

 private:
  // Tokens that sequence `index` is cut to, of `available`.
  size_t length(size_t index, size_t available) const;

  Documents documents_;
  bool random_ = false;
  size_t num_random_ = 0;
  uint64_t seed_ = 0;
  std::vector<int64_t> lengths_;  // rising, to be taken in turn
};

// --buckets, or --max-length alone, rising.
Result<std::vector<int64_t>> document_lengths(const Settings& settings);

}  // namespace kvant::cli
