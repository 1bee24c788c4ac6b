// Sensitivity: what a format costs in every layer by itself, and the mix of formats over the layers
// that costs least in a given number of bits.
//
// A layer's *harm* is the KL divergence of the model's predictions from BF16's when that layer
// alone is in the format and every other in BF16; it takes one run of the model per layer and
// format. The errors of attention_error.h are cheap and stand for it as far as their ranks agree.
// Harms of layers are taken to add up (each is small, and its sign knows nothing of the others'),
// so the best mix is a multiple-choice knapsack, solved exactly (Kellerer, Pferschy and Pisinger,
// "Knapsack Problems", 2004, section 11.5).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "evaluate/lockstep.h"

namespace kvant {

// Of every run, in order, the divergence that each layer of it causes alone: [run][layer], zeros
// where a layer has no pages of its own or is in bf16. `options` as evaluate() takes them; nothing
// is timed. Errors as evaluate()'s, with the layer in front.
Result<std::vector<std::vector<SeriesSummary>>> harms_by_layer(Model& model, ThreadPool& threads,
                                                               std::span<const int32_t> tokens,
                                                               std::span<const EvaluatedRun> runs,
                                                               const EvaluationOptions& options);

// Spearman's rank correlation of two series of one length, ties at their mean rank; 0 where one is
// constant or has fewer than two members.
double rank_correlation(std::span<const double> a, std::span<const double> b);

// What a layer takes and does in one format.
struct LayerCost {
  uint64_t bytes = 0;  // of a sealed page of all its heads
  double harm = 0;
};

// For every layer the index of its format, so that the sum of harms is least and the bytes are at
// most `budget`; of equally harmless mixes a smallest one. [layer][format], the same number of
// formats everywhere (at most 255). Empty if no mix is so small.
std::vector<int> least_harmful_mix(std::span<const std::vector<LayerCost>> layers, uint64_t budget);

}  // namespace kvant
