#include "kvant/status.h"

#include <array>

namespace kvant {
namespace {

struct CodeRow {
  std::string_view name;
  int exit_code;
};

// In the order of Code.
constexpr std::array<CodeRow, 9> kCodes = {{{"ok", 0},
                                            {"invalid_argument", 2},
                                            {"not_found", 2},
                                            {"unsupported", 2},
                                            {"corrupt", 2},
                                            {"exhausted", 1},
                                            {"io", 1},
                                            {"cancelled", 1},
                                            {"internal", 1}}};

}  // namespace

std::string_view code_name(Code code) { return kCodes[static_cast<size_t>(code)].name; }
int exit_code(Code code) { return kCodes[static_cast<size_t>(code)].exit_code; }

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return {code_, std::string(context) + ": " + message_};
}

}  // namespace kvant
