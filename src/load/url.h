// ServerUrl: where an OpenAI-compatible server listens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::load {

struct ServerUrl {
  std::string host;  // a name or an address, IPv6 without its brackets
  uint16_t port = 80;
  std::string prefix;  // of every path, without the /v1 that the calls add: "" or "/proxy"

  std::string text() const;       // "http://host:port/prefix"
  std::string authority() const;  // "host:port", as the Host header has it
};

// "http://host[:port][/prefix][/v1]"; without a scheme http is meant. unsupported for https, which
// isn't spoken here; invalid_argument otherwise.
Result<ServerUrl> parse_url(std::string_view text);

}  // namespace kvant::load
