#include "load/sse.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvant::load {
namespace {

// The start of a line, fit for a message.
std::string shown(std::string_view line) {
  std::string text(line.substr(0, 60));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text;
}

}  // namespace

Status EventStream::feed(std::string_view bytes,
                         const std::function<bool(std::string_view)>& on_data) {
  while (!bytes.empty() && !stopped_) {
    if (after_return_) {
      after_return_ = false;
      if (bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const size_t end = bytes.find_first_of("\r\n");
    line_.append(bytes.substr(0, end));
    if (line_.size() + data_.size() > kLongestEvent)
      return corrupt(fmt::format("an event is longer than {} bytes", kLongestEvent));
    if (end == bytes.npos) return {};
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    std::string line;
    line.swap(line_);
    KVANT_ASSIGN(const bool more, take_line(line, on_data));
    stopped_ = !more;
  }
  return {};
}

Result<bool> EventStream::take_line(std::string_view line,
                                    const std::function<bool(std::string_view)>& on_data) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (at_start_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  at_start_ = false;
  if (line.empty()) {
    std::string data;
    data.swap(data_);
    const bool complete = std::exchange(has_data_, false);
    return !complete || on_data(data);
  }
  const size_t colon = std::min(line.find(':'), line.size());
  const std::string_view name = line.substr(0, colon);
  std::string_view value = line.substr(std::min(colon + 1, line.size()));
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "data") {
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
    return true;
  }
  // The standard ignores fields that it doesn't know. A page of HTML would then pass for an empty
  // stream, so that here they are an error.
  if (name.empty() || name == "event" || name == "id" || name == "retry") return true;
  return corrupt(fmt::format("\"{}\" is no line of an event stream", shown(line)));
}

}  // namespace kvant::load
