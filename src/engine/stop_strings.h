// StopStrings: finds the texts that end an answer, wherever tokens cut them.
//
// Text that could still become the start of a stop string is held back, so that a reader never sees
// a part of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvant {

class StopStrings {
 public:
  // Empty strings are ignored: they'd stop everything.
  explicit StopStrings(std::vector<std::string> stops);

  // Adds text; returns what may be shown now. After a match that is the text before the earliest
  // stop string.
  std::string push(std::string_view text);
  // What was held back, when the answer ends without a match.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kvant
