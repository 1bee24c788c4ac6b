// Which files a command writes and which it reads, and that they aren't the same: the one place
// that knows every option of either kind.
#pragma once

#include "cli/command.h"

namespace kvant::cli {

// invalid_argument where an output is an input (through links too), is a file of the model's
// directory or is another output; io where it can't be written. Nothing is changed.
Status check_outputs(const Command& command, const Invocation& in);

}  // namespace kvant::cli
