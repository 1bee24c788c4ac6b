// Sums and products as a reader would write them down. A factor of 1 and a summand of 0 are left
// out, and what is only a number isn't said to be equal to itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvant/plan.h"

namespace kvant {

// "3 × 512", "1" for nothing but ones.
std::string product_text(std::vector<std::string> factors);
// "a + b"; "0" for nothing.
std::string sum_text(const std::vector<std::string>& summands);
// The sum fit to be a factor: in parentheses if it has several summands.
std::string factor_text(const std::vector<std::string>& summands);
// "3 × 512 = 1536", or "1536" where that is all there is.
std::string equation(const std::string& calculation, uint64_t value);
// Up to six decimals, without trailing zeros.
std::string exact_number(double value);

// Groups of layers and states of one planner, then K and V and what is needed.
std::string explain_groups(const CachePlanner& planner, const SequenceSet& set, int first_layer);
Result<std::string> explain_totals(const CachePlanner& planner, const SequenceSet& set);
// Effective bits, against the tokens' own values in bf16.
Result<std::string> explain_effective(const CachePlanner& planner, const SequenceSet& set);
// K and V of all sequences: "2 × (8 × 390016 + 1441792)".
std::string kv_calculation(const CachePlanner& planner, const SequenceSet& set);

}  // namespace kvant
