#include "cli/memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "cli/terminal.h"

namespace kvant::cli {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// The number behind `name` in a file of "name number" lines, times `unit`.
std::optional<uint64_t> field(const std::string& path, std::string_view name, uint64_t unit) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name))
      return unit * std::strtoull(line.c_str() + name.size(), nullptr, 10);
  }
  return std::nullopt;
}

// A file that holds one number; nothing if it is missing or holds a word ("max").
std::optional<uint64_t> number_in(const std::string& path) {
  uint64_t value = 0;
  std::ifstream file(path);
  return file >> value ? std::optional(value) : std::nullopt;
}

// The folders in which this process's memory limits may stand: version 2 of control groups, as
// seen from outside and from inside a container, then version 1.
struct GroupFiles {
  std::string limit, used, stat, cached;
};
std::vector<GroupFiles> group_files() {
  std::vector<GroupFiles> out;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) continue;
    const std::string folder = "/sys/fs/cgroup" + line.substr(3) + "/memory.";
    out.push_back({folder + "max", folder + "current", folder + "stat", "file "});
  }
  out.push_back({"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                 "/sys/fs/cgroup/memory.stat", "file "});
  const std::string old = "/sys/fs/cgroup/memory/memory.";
  out.push_back({old + "limit_in_bytes", old + "usage_in_bytes", old + "stat", "total_cache "});
  return out;
}

// What the control group still allows; its page cache can be dropped and counts as free.
uint64_t group_memory() {
  for (const GroupFiles& files : group_files()) {
    const std::optional<uint64_t> limit = number_in(files.limit), used = number_in(files.used);
    if (!limit || !used) continue;
    const uint64_t cached = std::min(*used, field(files.stat, files.cached, 1).value_or(0));
    return *limit - std::min(*limit, *used - cached);
  }
  return kUnlimited;
}

// What RLIMIT_AS leaves of the address space.
uint64_t address_space() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  const uint64_t used = field("/proc/self/status", "VmSize:", 1024).value_or(0);
  return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used);
}

}  // namespace

uint64_t available_memory() {
  const uint64_t system = field("/proc/meminfo", "MemAvailable:", 1024).value_or(kUnlimited);
  return std::min({system, group_memory(), address_space()});
}

uint64_t total_memory() { return field("/proc/meminfo", "MemTotal:", 1024).value_or(0); }

void MemoryBudget::add(std::string what, double bytes, std::string remedy) {
  if (bytes <= 0) return;
  const auto at = std::find_if(parts_.begin(), parts_.end(),
                               [&](const Part& part) { return part.bytes < bytes; });
  parts_.insert(at, {std::move(what), bytes, std::move(remedy)});
}

// Parts below a twentieth of the largest change nothing for the reader.
std::string MemoryBudget::parts_text() const {
  std::string out;
  for (const Part& part : parts_) {
    if (part.bytes < parts_.front().bytes / 20) break;
    out += fmt::format("{}{} for {}", out.empty() ? "" : ", ", human_bytes(part.bytes), part.what);
  }
  return out;
}

Status MemoryBudget::check(uint64_t available) const {
  double total = 0;
  for (const Part& part : parts_) total += part.bytes;
  if (total <= static_cast<double>(available)) return {};
  return exhausted(fmt::format("{} of memory are available, wanted {}",
                               human_bytes(static_cast<double>(available)), parts_text()));
}

std::string MemoryBudget::explain_shortage() const {
  if (parts_.empty()) return "memory ran out";
  return fmt::format("memory ran out; wanted {}", parts_text());
}

std::string MemoryBudget::advice() const {
  return parts_.empty() ? "" : fmt::format("; {}", parts_.front().remedy);
}

}  // namespace kvant::cli
