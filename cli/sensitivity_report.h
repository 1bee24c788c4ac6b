// Sensitivities for people and programs: the table of layers and heads.
#pragma once

#include <span>
#include <string>

#include "calibrate/sensitivities.h"
#include "cli/output.h"

namespace kvant::cli {

// A row for each layer, with `per_head` one for each head below it. `kinds`: of the model's layers,
// or none to leave that column out.
std::string sensitivity_table(const Sensitivities& sensitivities, bool per_head,
                              std::span<const std::string> kinds, bool colored);

// The options that stand for a mix: --kv int8 --kv-layers "0-1=int4".
std::string mix_options(const ProposedMix& mix);

Json sensitivities_json(const Sensitivities& sensitivities);

}  // namespace kvant::cli
