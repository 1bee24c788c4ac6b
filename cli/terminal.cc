#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace kvant::cli {
namespace {

// Code points, which are columns for all the text that we print.
size_t width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
  }));
}

std::string scaled(double value, double step, const std::array<std::string_view, 5>& units) {
  size_t unit = 0;
  while (std::abs(value) >= step && unit + 1 < units.size()) {
    value /= step;
    ++unit;
  }
  const int digits = unit == 0 || value >= 100 ? 0 : (value >= 10 ? 1 : 2);
  return fmt::format("{:.{}f}{}", value, digits, units[unit]);
}

}  // namespace

bool has_colors(std::FILE* file) {
  return isatty(fileno(file)) != 0 && std::getenv("NO_COLOR") == nullptr;
}

std::string paint(std::string_view text, Color color, bool colored) {
  constexpr std::string_view kCodes[] = {"", "1", "2", "32", "33", "31"};
  if (!colored || color == Color::kPlain) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<size_t>(color)], text);
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add_row(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
void Table::add_heading(std::string text) { rows_.push_back({{std::move(text), Color::kBold}}); }

std::string Table::render(bool colored) const {
  const auto is_heading = [&](const std::vector<Cell>& row) {
    return row.size() == 1 && columns_.size() > 1;
  };
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t w = width(columns_[c].title);
    for (const std::vector<Cell>& row : rows_) {
      if (!is_heading(row)) w = std::max(w, width(row[c].text));
    }
    widths.push_back(w);
  }
  const auto line = [&](const std::vector<Cell>& cells) {
    std::string out;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string fill(widths[c] - width(cells[c].text), ' ');
      const std::string text = paint(cells[c].text, cells[c].color, colored);
      if (c > 0) out += "  ";
      out += columns_[c].left ? text + fill : fill + text;
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    return out + '\n';
  };
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.push_back({column.title, Color::kBold});
  std::string out = line(titles);
  for (const std::vector<Cell>& row : rows_) {
    out += is_heading(row) ? "\n" + paint(row[0].text, row[0].color, colored) + "\n" : line(row);
  }
  return out;
}

std::string human_bytes(double bytes) {
  return scaled(bytes, 1000, {" B", " kB", " MB", " GB", " TB"});
}
std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}
std::string human_count(double count) { return scaled(count, 1000, {"", " k", " M", " G", " T"}); }

std::string short_number(double value) {
  if (value == 0) return "0";
  if (std::abs(value) < 1e-3) return fmt::format("{:.2e}", value);
  return fmt::format("{:.3g}", value);
}

Progress::Progress(std::string label)
    : label_(std::move(label)), shown_(isatty(STDERR_FILENO) != 0) {
  update(0);
}

Progress::~Progress() {
  if (shown_) note("\r\x1b[K");
}

void Progress::update(double share, std::string_view detail) {
  const int percent = static_cast<int>(100 * std::clamp(share, 0.0, 1.0));
  if (!shown_ || (percent == last_percent_ && detail.empty())) return;
  last_percent_ = percent;
  const int full = percent * 30 / 100;
  note("\r{} [{:=<{}}{: <{}}] {:3} %{}\x1b[K", label_, "", full, "", 30 - full, percent, detail);
  std::fflush(stderr);
}

}  // namespace kvant::cli
