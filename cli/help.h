// Help: what `kvant --help` and `kvant COMMAND --help` print, made from the tables of commands and
// options.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace kvant::cli {

std::string program_help(std::span<const Command> commands);
std::string command_help(const Command& command);

}  // namespace kvant::cli
