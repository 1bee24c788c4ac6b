// Notes of a plan: what holds for many layers, formats or lengths is said once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvant/plan.h"

namespace kvant {

// One sentence for all layers and formats that fall back for one reason: "layers 0-26: K uses bf16
// instead of int8_channel: …". A layer without V has nothing that would fall back beside its K.
std::vector<std::string> fallback_notes(const ModelShape& shape,
                                        std::span<const FormatFallback> fallbacks);

// Formats that were asked for and that the model's heads can't take: one sentence for all, with the
// first one's reason.
struct LeftOut {
  std::string format;
  std::string reason;
};
std::vector<std::string> left_out_notes(std::span<const LeftOut> formats);

// Formats whose place in the order of quality is a guess by their bits.
std::vector<std::string> by_bits_notes(std::span<const std::string> formats);

// What stands for a source whose length neither model nor request say.
std::vector<std::string> source_notes(const ModelShape& shape, const PlanRequest& request);

// Which of the lengths are longer than what the model is made for; nothing if none is, or if the
// configuration doesn't say.
std::vector<std::string> length_notes(const ModelShape& shape, std::span<const int64_t> lengths);

}  // namespace kvant
