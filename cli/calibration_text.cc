#include "cli/calibration_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"
#include "cli/prompt.h"

namespace kvant::cli {
namespace {

// Text of a document, in bytes a token: few languages take more, and what is shorter loses nothing.
constexpr size_t kBytesPerToken = 8;
constexpr int64_t kShortestBucket = 16;

Result<std::vector<int32_t>> document_tokens(const Tokenizer& tokenizer, const Document& document) {
  if (document.messages.empty()) return text_tokens(tokenizer, document.text);
  return chat_tokens(tokenizer, document.messages, ChatEnd::kClosed, "documents with \"text\"");
}

}  // namespace

Result<std::vector<int64_t>> document_lengths(const Settings& settings) {
  if (settings.buckets.empty()) return std::vector<int64_t>{settings.max_length};
  std::vector<int64_t> lengths;
  for (const std::string& item : split_items(settings.buckets)) {
    KVANT_ASSIGN(const int64_t length, parse_count(item));
    if (length < kShortestBucket) {
      return invalid_argument(fmt::format("--buckets {}: wanted lengths of at least {} tokens",
                                          settings.buckets, kShortestBucket));
    }
    lengths.push_back(length);
  }
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

Result<CalibrationText> CalibrationText::open(const Settings& settings, const std::string& files) {
  CalibrationText out;
  out.seed_ = static_cast<uint64_t>(settings.seed);
  KVANT_ASSIGN(out.lengths_, document_lengths(settings));
  if (files.empty()) {
    out.random_ = true;
    out.num_random_ = static_cast<size_t>(settings.samples);
    out.documents_.digest = fmt::format("random tokens of seed {}", settings.seed);
    return out;
  }
  KVANT_ASSIGN(
      out.documents_,
      sample_documents({.paths = split_items(files),
                        .samples = settings.samples,
                        .seed = out.seed_,
                        .max_bytes = static_cast<size_t>(out.lengths_.back()) * kBytesPerToken,
                        .skip_bad = settings.skip_bad}));
  return out;
}

std::string CalibrationText::place(size_t index) const {
  return random_ ? fmt::format("random sequence {}", index) : documents_.sample[index].place;
}

size_t CalibrationText::length(size_t index, size_t available) const {
  const auto wanted = static_cast<size_t>(lengths_[index % lengths_.size()]);
  if (available >= wanted) return wanted;
  size_t fits = available;
  for (const int64_t length : lengths_) {
    if (static_cast<size_t>(length) <= available) fits = static_cast<size_t>(length);
  }
  return fits;
}

Result<std::vector<int32_t>> CalibrationText::tokens(size_t index, const Model& model) const {
  const auto most = static_cast<size_t>(model.info().max_positions);
  if (random_) {
    std::vector<int32_t> ids(std::min(length(index, most), most));
    Rng rng(mix64(seed_) ^ index);
    for (int32_t& id : ids)
      id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(model.info().vocab_size)));
    return ids;
  }
  Result<std::vector<int32_t>> ids = document_tokens(model.tokenizer(), documents_.sample[index]);
  if (!ids.ok()) return ids.status().with_context(place(index));
  ids->resize(std::min(length(index, ids->size()), most));
  return ids;
}

}  // namespace kvant::cli
