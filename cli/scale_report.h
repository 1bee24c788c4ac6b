// Scales for people: what calibration found, and what is wrong with scales that a file carries.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/sidecar.h"
#include "cli/output.h"

namespace kvant::cli {

// A scale, or the place where one is missing.
struct ScaleEntry {
  int layer = 0;
  char side = 'k';  // q, k or v
  int head = -1;    // −1: of all heads
  std::string format;
  double scale = 0;
  double largest = 0;  // magnitude that was seen there; 0: not known
  // Where the magnitudes of that tensor or head end (calibrate/clips.h); zeros: not known.
  Clips clips = {};
  const std::vector<Clips>* channels = nullptr;  // of that head; null: not known, or of all heads
  double beyond = -1;  // share of the numbers checked that a code can't stand for; −1: not known
  std::string origin;  // which file it is from, and how it was found
  std::string complaint;  // what is wrong with it; empty: nothing
};

// Every scale of a sidecar, with what is wrong. Entries point into `scales`.
std::vector<ScaleEntry> scale_entries(const CacheScales& scales, const std::string& file);
// Fills `complaint` from the other fields; a missing scale has its complaint already.
void judge(ScaleEntry& entry);
// The largest magnitude that calibration saw in a head, or in all for −1; 0 where it isn't kept.
double largest_seen(const CacheScales& scales, int layer, char side, int head);

// One line for each format, or nothing. `checked_on`: the name of that text.
std::string scale_summary(const CacheScales& scales, std::string_view checked_on);
// What a calibration read: "512 tokens of text 0a1b2c3d".
std::string learned_text(const Sidecar& sidecar);
// Which file, of which model, from what and by which command: two lines.
std::string sidecar_heading(const Sidecar& sidecar);
Json scales_json(const CacheScales& scales);
int64_t count_wrong(std::span<const ScaleEntry> entries);
Json entries_json(std::span<const ScaleEntry> entries);
// The table, then what is wrong, counted.
std::string entries_table(std::span<const ScaleEntry> entries, bool colored);

}  // namespace kvant::cli
