// The HTTP client: one thread, thousands of connections, by Boost.Beast's coroutines, which no
// header of ours shows. drive() sends the requests of a level, closed loop or open, and records
// what comes; ask() is one call and its answer.
//
// Connections are kept alive and used again, the last one first. Names are resolved once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "load/answer_stream.h"
#include "load/record.h"
#include "load/url.h"
#include "load/workload.h"

namespace kvant::load {

struct Endpoint {
  ServerUrl url;
  std::string api_key;  // sent as a bearer token; "": none
};

struct HttpAnswer {
  int status = 0;
  std::string body;
  std::string server;  // of the Server header
};

// One request on a connection of its own. `body`: JSON, or "" for a GET. io where there is no whole
// answer after `timeout_s`; any status is an answer.
Result<HttpAnswer> ask(const Endpoint& server, std::string_view path, const std::string& body,
                       double timeout_s);

// How requests follow one another: so many at a time, or so many a second on average.
struct Level {
  int64_t concurrency = 0;  // closed loop: each ended request is followed by the next
  double rate = 0;          // open loop: Poisson arrivals, which don't wait for the server

  bool open_loop() const { return rate > 0; }
  std::string text() const;  // "concurrency 4", "0.5 requests/s"
};

struct DriveProgress {
  double share = 0;  // of the duration, or of the requests
  int64_t done = 0, failed = 0, running = 0;
};

struct DriveOptions {
  Endpoint server;
  Api api = Api::kCompletions;
  Level level;
  double duration_s = 0;     // of new requests, behind the warm-up; 0: until there are enough
  int64_t max_requests = 0;  // beside the warm-up; 0: as many as the duration allows
  int64_t warmup = 0;        // the first so many are sent as the others are, and aren't counted
  double timeout_s = 600;    // of one request
  bool exact_tokens = false;
  KeepText keep_text = KeepText::kNo;
  // Nanoseconds, from anywhere on. Called once when a request is sent, once when bytes of an answer
  // came and once when a request fails, by one thread; empty: the steady clock.
  std::function<int64_t()> now_ns;
  // Ten times a second; false ends the run there. May be empty.
  std::function<bool(const DriveProgress&)> on_tick;
};

struct Driven {
  std::vector<RequestRecord> records;  // in the order in which they were begun
  bool interrupted = false;
  double worst_lag_s = 0;  // of an open loop: how late a request was sent, at most
};

// REQUIRES: a duration or a number of requests; a concurrency or a rate. io where the host's name
// can't be resolved; what goes wrong later is in the records. After a failure a place of the closed
// loop rests for a tenth of a second, so that a dead server isn't hammered.
Result<Driven> drive(const DriveOptions& options, const Workload& workload);

}  // namespace kvant::load
