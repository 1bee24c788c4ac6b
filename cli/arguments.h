// Arguments: from argv to a command and its settings. CLI11 cuts the words apart; the option
// table of engine/settings.h says what they mean.
//
//   --name VALUE, --name=VALUE, -n VALUE, -nVALUE; a flag has no value; --json alone or --json=FILE
//   --                what follows is no option
//   help [COMMAND]    as --help
#pragma once

#include <optional>
#include <span>
#include <string>

#include "cli/command.h"

namespace kvant::cli {

struct Arguments {
  const Command* command = nullptr;  // nullptr: help on the whole program
  bool help = false;
  bool version = false;
  Invocation invocation;
};

// `words`: argv without the program's name. invalid_argument with one sentence.
Result<Arguments> parse_arguments(std::span<const std::string> words,
                                  std::span<const Command> commands);

}  // namespace kvant::cli
