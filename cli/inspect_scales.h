// kvant inspect --scales: what scales of the cache a path carries, without loading a model.
#pragma once

#include "cli/command.h"

namespace kvant::cli {

// MODEL may also be a sidecar, or a directory that holds nothing else.
Status inspect_scales(const Invocation& in);

}  // namespace kvant::cli
