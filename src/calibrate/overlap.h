// Overlap: whether a test reads what calibration read. Texts are compared line by line, by hash.
//
// A line counts from 32 bytes on, without the white space around it; what is shorter is alike in
// many texts. Lines that a document's limit cut differ, so a text that was calibrated on shows
// nearly all of its lines, never none.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "calibrate/documents.h"

namespace kvant {

// XXH3-128's first 64 bits of every line that counts, each once, rising.
std::vector<int64_t> line_hashes(std::string_view text);
std::vector<int64_t> line_hashes(std::span<const Document> documents);

// How many of the lines are among the known ones; both as line_hashes() gives them.
int64_t count_shared(std::span<const int64_t> lines, std::span<const int64_t> known);

struct Overlap {
  int64_t shared = 0;  // different lines of the text that are among the known ones
  int64_t lines = 0;   // different lines of the text
};
// `known` as line_hashes() gives them.
Overlap overlap_of(std::string_view text, std::span<const int64_t> known);

}  // namespace kvant
