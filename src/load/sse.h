// EventStream: bytes of a text/event-stream, cut wherever the network cut them, to the data of its
// events (WHATWG HTML, section 9.2). Names, ids and retry times of events, which no completion API
// uses, are left out.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::load {

class EventStream {
 public:
  static constexpr size_t kLongestEvent = 16 << 20;

  // Calls `on_data` with the data of every event that `bytes` completes, in order; it returns false
  // to hear no more. corrupt where a line is no field of an event, or an event is too long.
  Status feed(std::string_view bytes, const std::function<bool(std::string_view)>& on_data);

  // True if the stream could end here: no event is begun.
  bool between_events() const { return line_.empty() && !has_data_; }

 private:
  // One whole line, without its end. False: hear no more.
  Result<bool> take_line(std::string_view line,
                         const std::function<bool(std::string_view)>& on_data);

  std::string line_;  // of which the end hasn't come
  std::string data_;
  bool has_data_ = false;
  bool after_return_ = false;  // a line feed now belongs to the line's end before it
  bool at_start_ = true;
  bool stopped_ = false;
};

}  // namespace kvant::load
