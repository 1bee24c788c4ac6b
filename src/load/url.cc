#include "load/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace kvant::load {
namespace {

constexpr std::string_view kWanted = "wanted http://HOST:PORT";

Status refused(std::string_view text, std::string_view what) {
  return invalid_argument(fmt::format("{}: {}; {}", text, what, kWanted));
}

bool is_host(std::string_view host, bool bracketed) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [&](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u > 0x20 && u != 0x7f && std::string_view("@[]?#").find(c) == std::string_view::npos &&
           (bracketed || c != ':');
  });
}

}  // namespace

std::string ServerUrl::authority() const {
  const bool bare = host.find(':') == host.npos;
  return fmt::format("{}{}{}:{}", bare ? "" : "[", host, bare ? "" : "]", port);
}

std::string ServerUrl::text() const { return fmt::format("http://{}{}", authority(), prefix); }

Result<ServerUrl> parse_url(std::string_view text) {
  std::string_view rest = text;
  if (const size_t at = text.find("://"); at != text.npos) {
    const std::string_view scheme = text.substr(0, at);
    if (scheme == "https") {
      return unsupported(fmt::format(
          "{}: https isn't spoken here; wanted http://, by way of a proxy or a tunnel if need be",
          text));
    }
    if (scheme != "http") return refused(text, fmt::format("the scheme {} isn't known", scheme));
    rest.remove_prefix(at + 3);
  }
  ServerUrl url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), path = rest.substr(slash);
  if (path.find_first_of("?# ") != path.npos)
    return refused(text, "a path with a query, a fragment or a blank");
  const bool bracketed = authority.starts_with('[');
  size_t end = bracketed ? authority.find(']') : authority.find(':');
  if (bracketed && end == authority.npos) return refused(text, "a [ without its ]");
  end = std::min(end, authority.size());
  const std::string_view host = authority.substr(bracketed ? 1 : 0, end - (bracketed ? 1 : 0));
  std::string_view port = authority.substr(std::min(end + (bracketed ? 1 : 0), authority.size()));
  if (!is_host(host, bracketed)) return refused(text, "no host");
  url.host = host;
  if (!port.empty()) {
    port.remove_prefix(1);
    const auto [last, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (error != std::errc() || last != port.data() + port.size() || url.port == 0)
      return refused(text, fmt::format("\"{}\" is no port", port));
  }
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  while (path.ends_with('/')) path.remove_suffix(1);
  url.prefix = path;
  return url;
}

}  // namespace kvant::load
