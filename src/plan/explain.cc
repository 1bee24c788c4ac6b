#include "plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "formats/names.h"
#include "plan/group_rule.h"

namespace kvant {
namespace {

std::string describe(const CacheStream& stream) {
  std::string out(stream_kind_name(stream.kind));
  if (stream.window > 0) out += fmt::format(", window {}", stream.window);
  if (stream.tokens_per_entry > 1)
    out += fmt::format(", one entry for {} tokens", stream.tokens_per_entry);
  out += fmt::format("; {} head{} of ", stream.heads, stream.heads == 1 ? "" : "s");
  out += stream.v_dim > 0 ? fmt::format("K {} and V {}", stream.k_dim, stream.v_dim)
                          : fmt::format("{} channels, stored once", stream.k_dim);
  return out;
}

std::string layers_text(const std::vector<int>& layers, int first_layer) {
  std::vector<int> indices = layers;
  for (int& index : indices) index += first_layer;
  return fmt::format("{} layer{} ({})", layers.size(), layers.size() == 1 ? "" : "s",
                     index_ranges(indices));
}

std::string number(uint64_t value) { return fmt::format("{}", value); }
std::string number(int64_t value) { return fmt::format("{}", value); }

std::vector<std::string> page_terms(const PlannedGroup& group, const HeldPages& pages) {
  std::vector<std::string> terms;
  if (pages.sealed > 0)
    terms.push_back(fmt::format("{} sealed × {}", pages.sealed, group.sealed_page));
  if (pages.exact > 0) terms.push_back(fmt::format("{} exact × {}", pages.exact, group.exact_page));
  return terms;
}

uint64_t bytes_of(const PlannedGroup& group, const HeldPages& pages) {
  return static_cast<uint64_t>(pages.sealed) * group.sealed_page +
         static_cast<uint64_t>(pages.exact) * group.exact_page;
}

std::string pages_equation(const PlannedGroup& group, const HeldPages& pages) {
  return equation(sum_text(page_terms(group, pages)), bytes_of(group, pages)) + " bytes";
}

// 64 rows of one side of an exact page: "64 × 128 × 2".
std::string exact_side(uint64_t bytes, int dim) {
  const uint64_t values = static_cast<uint64_t>(kPageTokens) * static_cast<uint64_t>(dim);
  if (values == 0 || bytes % values != 0) return number(bytes);
  return fmt::format("{} × {} × {}", kPageTokens, dim, bytes / values);
}

// One side of a sealed page of one head.
std::string sealed_side(const char* side, const std::string& format, int dim, uint64_t bytes,
                        double bits) {
  const Result<const FormatInfo*> info = find_format(format);
  const double nominal = info.ok() ? (*info)->nominal_bits : 0;
  const auto codes = static_cast<uint64_t>(kPageTokens * dim * nominal / 8);
  std::string out = fmt::format("    {} of a sealed page, one head, {}: {} × {} × {} / 8 of codes",
                                side, format, kPageTokens, dim, nominal);
  if (bytes != codes) {
    out += bytes > codes ? fmt::format(" + {} of scales and padding", bytes - codes)
                         : fmt::format(" - {} that this width saves", codes - bytes);
  }
  return out + fmt::format(" = {} bytes, {} bits a value\n", bytes, exact_number(bits));
}

std::string explain_page_sizes(const PlannedGroup& group) {
  const CacheStream& stream = group.stream;
  const std::string layers = number(static_cast<uint64_t>(group.layers.size()));
  const std::string heads = fmt::format("{}", stream.heads);
  std::vector<std::string> sides = {exact_side(group.exact_parts.key, stream.k_dim)};
  if (stream.v_dim > 0) sides.push_back(exact_side(group.exact_parts.value, stream.v_dim));
  if (group.exact_parts.before_rope > 0) {
    sides.push_back(exact_side(group.exact_parts.before_rope, stream.k_dim) + " before RoPE");
  }
  std::string out =
      fmt::format("    exact page: {} bytes\n",
                  equation(product_text({layers, heads, factor_text(sides)}), group.exact_page));
  if (!group.seals) return out;
  const PageParts& sealed = group.sealed_parts;
  out += sealed_side("K", group.formats.key, stream.k_dim, sealed.key, group.key_bits);
  std::vector<std::string> parts = {number(sealed.key)};
  if (stream.v_dim > 0) {
    out += sealed_side("V", group.formats.value, stream.v_dim, sealed.value, group.value_bits);
    parts.push_back(number(sealed.value));
  }
  return out + fmt::format(
                   "    sealed page: {} bytes\n",
                   equation(product_text({layers, heads, factor_text(parts)}), group.sealed_page));
}

// Why pages of a group that seals are exact: "1 sink, 2 in the exact window, the open one".
std::string exact_reasons(const CachePlanner& planner, const PlannedGroup& group,
                          const SequenceSet& set) {
  const int64_t length = entries(group.stream, set);
  const ReadRule rule = rule_of(group, planner.options());
  const PageCounts held = held_pages(rule, length);
  const int64_t first = first_held_page(rule, length);
  const int64_t open = length % kPageTokens == 0 ? 0 : 1;
  const int64_t sinks =
      std::min(held.exact - open,
               std::max<int64_t>(0, std::min<int64_t>(rule.sink_pages, num_pages(length)) - first));
  const int64_t recent = held.exact - open - std::max<int64_t>(0, sinks);
  std::vector<std::string> reasons;
  if (sinks > 0) reasons.push_back(fmt::format("{} sink{}", sinks, sinks == 1 ? "" : "s"));
  if (recent > 0) reasons.push_back(fmt::format("{} in the exact window", recent));
  if (open > 0) reasons.push_back("the open one");
  return fmt::format("{}", fmt::join(reasons, ", "));
}

// "8 sealed and 2 exact pages".
std::string counts_text(const PageCounts& pages) {
  return fmt::format("{} sealed and {} exact pages", pages.sealed, pages.exact);
}

std::string explain_pages(const CachePlanner& planner, const PlannedGroup& group,
                          const SequenceSet& set) {
  const GroupPages pages = planner.pages(group, set);
  const PlanOptions& options = planner.options();
  std::string out = "    a sequence: " + pages_equation(group, pages.first);
  if (options.context_ranks > 1) {
    out += fmt::format("; {} are dealt out to {} ranks",
                       counts_text(held_pages(rule_of(group, options), entries(group.stream, set))),
                       options.context_ranks);
  } else if (group.seals && pages.first.exact > 0) {
    out += fmt::format("; exact: {}", exact_reasons(planner, group, set));
  }
  out += "\n";
  if (set.sequences > 1 && set.shared_prefix > 0) {
    out += fmt::format("    each further one, beside the shared prefix: {}\n",
                       pages_equation(group, pages.further));
  }
  out += fmt::format("    at its peak, prefilled in steps of {} tokens: {}\n", options.step_tokens,
                     pages_equation(group, pages.filling));
  if (set.sequences > 1) {
    out += fmt::format("    at the peak of each other, growing by one token: {}\n",
                       pages_equation(group, pages.growing));
  }
  return out;
}

std::string explain_group(const CachePlanner& planner, const PlannedGroup& group,
                          const SequenceSet& set, int first_layer) {
  const CacheStream& stream = group.stream;
  const auto layers = static_cast<int64_t>(group.layers.size());
  const std::string dims = stream.v_dim > 0 ? fmt::format("({} + {})", stream.k_dim, stream.v_dim)
                                            : fmt::format("{}", stream.k_dim);
  const bool entries = stream.tokens_per_entry > 1;
  std::string out =
      fmt::format("  {}: {}\n", layers_text(group.layers, first_layer), describe(stream));
  out += fmt::format("    {} adds {} values; a page holds {} {}\n",
                     stream.kind == StreamKind::kCross ? "a token of the source"
                     : entries                         ? "an entry"
                                                       : "a token",
                     equation(product_text({number(layers), fmt::format("{}", stream.heads), dims}),
                              static_cast<uint64_t>(layers * stream.entry_elements())),
                     kPageTokens, entries ? "entries" : "tokens");
  return out + explain_page_sizes(group) + explain_pages(planner, group, set);
}

// Bytes of all groups' `pages`, one summand for each.
std::vector<std::string> group_bytes(const CachePlanner& planner, const SequenceSet& set,
                                     HeldPages GroupPages::*pages) {
  std::vector<std::string> summands;
  for (const PlannedGroup& group : planner.groups()) {
    const uint64_t bytes = bytes_of(group, planner.pages(group, set).*pages);
    if (bytes > 0) summands.push_back(number(bytes));
  }
  return summands;
}

// `first` and, of every further sequence, `further`.
std::vector<std::string> sequence_terms(const CachePlanner& planner, const SequenceSet& set,
                                        HeldPages GroupPages::*first,
                                        HeldPages GroupPages::*further) {
  const std::vector<std::string> one = group_bytes(planner, set, first);
  const std::vector<std::string> other = group_bytes(planner, set, further);
  if (one == other) return {product_text({number(set.sequences), factor_text(one)})};
  std::vector<std::string> terms = one;
  if (set.sequences > 1 && !other.empty())
    terms.push_back(product_text({number(set.sequences - 1), factor_text(other)}));
  return terms;
}

std::string explain_state(const CachePlanner& planner, const SequenceSet& set, int first_layer) {
  std::string out;
  std::vector<std::string> layers;
  for (const StateGroup& group : planner.states()) {
    const ConstantState& state = group.state;
    std::vector<std::string> parts;
    if (state.recurrent_elements > 0)
      parts.push_back(fmt::format("{} × {}", state.recurrent_elements, state.recurrent_bytes));
    if (state.conv_elements > 0)
      parts.push_back(fmt::format("{} × {}", state.conv_elements, state.conv_bytes));
    const uint64_t bytes = group.layers.size() * state.bytes();
    out += fmt::format(
        "  {}: constant state of {} bytes a sequence\n", layers_text(group.layers, first_layer),
        equation(
            product_text({number(static_cast<uint64_t>(group.layers.size())), factor_text(parts)}),
            bytes));
    layers.push_back(number(bytes));
  }
  if (layers.empty()) return "";
  const uint64_t all = static_cast<uint64_t>(set.sequences) * planner.state_bytes();
  const std::string total = product_text({number(set.sequences), factor_text(layers)});
  if (total == number(all)) return out;
  return out + fmt::format("  constant state in all: {} bytes\n", equation(total, all));
}

}  // namespace

std::string product_text(std::vector<std::string> factors) {
  std::erase(factors, "1");
  if (factors.empty()) return "1";
  if (std::find(factors.begin(), factors.end(), "0") != factors.end()) return "0";
  return fmt::format("{}", fmt::join(factors, " × "));
}

std::string sum_text(const std::vector<std::string>& summands) {
  if (summands.empty()) return "0";
  return fmt::format("{}", fmt::join(summands, " + "));
}

std::string factor_text(const std::vector<std::string>& summands) {
  return summands.size() > 1 ? "(" + sum_text(summands) + ")" : sum_text(summands);
}

std::string equation(const std::string& calculation, uint64_t value) {
  const std::string result = number(value);
  return calculation == result ? result : calculation + " = " + result;
}

std::string exact_number(double value) {
  std::string text = fmt::format("{:.6f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string kv_calculation(const CachePlanner& planner, const SequenceSet& set) {
  return sum_text(sequence_terms(planner, set, &GroupPages::first, &GroupPages::further));
}

std::string explain_groups(const CachePlanner& planner, const SequenceSet& set, int first_layer) {
  std::string out;
  for (const PlannedGroup& group : planner.groups())
    out += explain_group(planner, group, set, first_layer);
  return out + explain_state(planner, set, first_layer);
}

Result<std::string> explain_totals(const CachePlanner& planner, const SequenceSet& set) {
  KVANT_ASSIGN(const CacheBytes bytes, planner.bytes(set));
  std::vector<std::string> needed =
      sequence_terms(planner, set, &GroupPages::filling, &GroupPages::growing);
  if (bytes.state > 0) needed.push_back(number(bytes.state) + " of state");
  return fmt::format(
      "  K and V: {} bytes\n  needed, so that all can grow to this length: {} bytes\n",
      equation(kv_calculation(planner, set), bytes.kv()), equation(sum_text(needed), bytes.needed));
}

Result<std::string> explain_effective(const CachePlanner& planner, const SequenceSet& set) {
  KVANT_ASSIGN(const CacheBytes bytes, planner.bytes(set));
  std::vector<std::string> terms;
  for (const PlannedGroup& group : planner.groups()) {
    const GroupPages pages = planner.pages(group, set);
    std::vector<std::string> seen = {number(pages.seen)};
    if (set.sequences > 1 && pages.further_seen != pages.seen) {
      seen.push_back(product_text({number(set.sequences - 1), number(pages.further_seen)}));
    } else {
      seen = {product_text({number(set.sequences), number(pages.seen)})};
    }
    const auto values = static_cast<uint64_t>(group.stream.entry_elements()) * group.layers.size();
    terms.push_back(product_text({factor_text(seen), number(values), "2"}));
  }
  if (terms.empty() || bytes.ideal == 0) return std::string();
  return fmt::format(
      "  the tokens that a query sees, in bf16 and unpadded: {} bytes\n"
      "  effective bits: 16 × {} / {} = {}\n",
      equation(sum_text(terms), bytes.ideal), bytes.kv(), bytes.ideal,
      exact_number(bytes.effective_bits()));
}

Result<std::string> explain_bytes(const CachePlanner& planner, const SequenceSet& set,
                                  int first_layer) {
  KVANT_ASSIGN(const std::string totals, explain_totals(planner, set));
  KVANT_ASSIGN(const std::string effective, explain_effective(planner, set));
  return fmt::format("{} sequence{} of {} tokens\n", set.sequences, set.sequences == 1 ? "" : "s",
                     set.tokens) +
         explain_groups(planner, set, first_layer) + totals + effective;
}

}  // namespace kvant
