// kvant inspect of what calibration and sensitivity left: a sidecar, by itself or beside a model.
#pragma once

#include <optional>

#include "calibrate/sidecar.h"
#include "cli/output.h"

namespace kvant::cli {

// The sidecar at a path that isn't a model: the file, or a directory that holds one. Nothing where
// the path is a model's, or has none.
Result<std::optional<Sidecar>> lone_sidecar(const std::string& path);

std::string sidecar_text(const Sidecar& sidecar, bool per_head, bool colored);
Json sidecar_json(const Sidecar& sidecar);

}  // namespace kvant::cli
