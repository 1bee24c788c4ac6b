// CalibrationUse: what a calibration and a checkpoint give to the caches of a run, and what a user
// is told about it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/sidecar.h"
#include "cli/command.h"
#include "kvant/cache.h"
#include "model/model.h"

namespace kvant::cli {

// What --calibration names, or a model's directory holds; nothing where there is none.
Result<std::optional<Sidecar>> open_calibration(const Invocation& in);

// Formats that there are artifacts or scales for in one layer. `calibration` may be null.
std::vector<std::string> calibrated_formats(size_t layer, const ModelInfo& info,
                                            const Sidecar* calibration);

// Fills the given scales of a layer whose formats are chosen: the calibration's, else the
// checkpoint's; none for formats that take none.
void give_scales(size_t layer, const ModelInfo& info, const Sidecar* calibration, CacheLayer& to);

// Where the scales of formats that take given ones, or have none at all, come from: a sentence for
// each.
std::vector<std::string> scale_sources(const CacheOptions& options, const UsableScales& checkpoint,
                                       const Sidecar* calibration);

// Warns on stderr where a text that is measured on was calibrated on.
void note_overlap(const std::optional<Sidecar>& calibration, std::string_view text);

}  // namespace kvant::cli
