// Terminal: tables, numbers for people, colours and progress bars. Colours only where a terminal
// reads them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvant::cli {

// Prints to stderr. What can't be written there, because its disk is full or its reader is gone, is
// dropped: a note never costs an answer.
template <typename... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

enum class Color : uint8_t { kPlain, kBold, kDim, kGreen, kYellow, kRed };

// True if `file` is a terminal and NO_COLOR isn't set.
bool has_colors(std::FILE* file);
// `text` in that colour if `colored`.
std::string paint(std::string_view text, Color color, bool colored);

struct Cell {
  std::string text;
  Color color = Color::kPlain;
};

// Columns as wide as their widest cell; the first is aligned left, numbers to the right.
class Table {
 public:
  struct Column {
    std::string title;
    bool left = false;
  };
  explicit Table(std::vector<Column> columns);
  void add_row(std::vector<Cell> cells);  // as many as columns
  void add_heading(std::string text);     // on a line of its own, after an empty one
  std::string render(bool colored) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

std::string human_bytes(double bytes);                      // "98.1 MB", decimal units
std::string counted(int64_t count, std::string_view noun);  // "1 token", "2 tokens"
std::string human_count(double count);                      // "134.5 M"
std::string short_number(double value);  // three significant digits: "1.23e-05", "0.0123", "12.3"

// A bar on stderr, when stderr is a terminal; silent otherwise.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();  // takes the bar away
  // `detail` follows the percentage.
  void update(double share, std::string_view detail = {});

 private:
  std::string label_;
  bool shown_;
  int last_percent_ = -1;
};

}  // namespace kvant::cli
