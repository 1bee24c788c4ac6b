// explain_bytes and explain_plan: the rows of a plan as calculations.
#include <fmt/format.h>

#include "formats/names.h"
#include "kvant/plan.h"

namespace kvant {
namespace {

std::string describe(const CacheStream& stream) {
  std::string out(stream_kind_name(stream.kind));
  if (stream.window > 0) out += fmt::format(", window {}", stream.window);
  if (stream.tokens_per_entry > 1)
    out += fmt::format(", one entry for {} tokens", stream.tokens_per_entry);
  out += fmt::format("; {} head{} × ", stream.heads, stream.heads == 1 ? "" : "s");
  out += stream.v_dim > 0 ? fmt::format("(K {} + V {})", stream.k_dim, stream.v_dim)
                          : fmt::format("{} channels, stored once", stream.k_dim);
  return out;
}

// "3 sealed × 4,096 + 1 exact × 16,384".
std::string page_sum(const PlannedGroup& group, const HeldPages& pages) {
  if (!group.seals) return fmt::format("{} exact × {}", pages.exact, group.exact_page);
  return fmt::format("{} sealed × {} + {} exact × {}", pages.sealed, group.sealed_page, pages.exact,
                     group.exact_page);
}

uint64_t bytes_of(const PlannedGroup& group, const HeldPages& pages) {
  return static_cast<uint64_t>(pages.sealed) * group.sealed_page +
         static_cast<uint64_t>(pages.exact) * group.exact_page;
}

std::string explain_group(const CachePlanner& planner, const PlannedGroup& group,
                          const SequenceSet& set, int first_layer) {
  const size_t layers = group.layers.size();
  std::vector<int> indices = group.layers;
  for (int& index : indices) index += first_layer;
  const GroupPages pages = planner.pages(group, set);
  std::string out = fmt::format("  {} layer{} ({}): {}\n", layers, layers == 1 ? "" : "s",
                                index_ranges(indices), describe(group.stream));
  out += fmt::format("    a token adds {} × {} = {} values; a page holds {}{}\n", layers,
                     group.stream.entry_elements(),
                     static_cast<int64_t>(layers) * group.stream.entry_elements(), kPageTokens,
                     group.stream.tokens_per_entry > 1 ? " entries" : " tokens");
  out += fmt::format("    exact page {} bytes", group.exact_page);
  if (group.seals) {
    out += fmt::format("; sealed page in {}: {} bytes, {:.2f} bits a K value", group.formats.name(),
                       group.sealed_page, group.key_bits);
    if (group.stream.v_dim > 0) out += fmt::format(", {:.2f} a V value", group.value_bits);
  }
  out += fmt::format("\n    a sequence: {} = {} bytes\n", page_sum(group, pages.first),
                     bytes_of(group, pages.first));
  if (set.sequences > 1 && set.shared_prefix > 0) {
    out += fmt::format("    each further one, beside the shared prefix: {} = {} bytes\n",
                       page_sum(group, pages.further), bytes_of(group, pages.further));
  }
  return out;
}

// Every stage on one of its devices, and what all devices hold together.
Result<std::string> explain_devices(const std::vector<ModelStage>& stages,
                                    const ResolvedFormats& formats, const PlanRequest& request,
                                    int64_t tokens) {
  const int64_t copies = int64_t{request.sharding.tensor} * request.sharding.context;
  PlanOptions options = request.options;
  options.context_ranks = request.sharding.context;
  std::string out, sum;
  uint64_t total = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const ModelShape& shape = stages[s].shape;
    const auto of_stage =
        std::span(formats.effective)
            .subspan(static_cast<size_t>(stages[s].first_layer), shape.layers.size());
    KVANT_ASSIGN(const CachePlanner planner, CachePlanner::create(shape, of_stage, options));
    const SequenceSet set = sequences_of(shape, request, tokens, request.batch);
    KVANT_ASSIGN(const std::string text, explain_bytes(planner, set, stages[s].first_layer));
    if (request.sharding.devices() == 1) return text;
    // Of all its context ranks together, each of which holds some of the pages.
    KVANT_ASSIGN(const CachePlanner ranks, CachePlanner::create(shape, of_stage, request.options));
    KVANT_ASSIGN(const CacheBytes bytes, ranks.bytes(set));
    out += fmt::format("{} {} of stage {}, {}", copies == 1 ? "the" : "each of the",
                       copies == 1 ? "device" : fmt::format("{} devices", copies), s, text);
    sum += fmt::format("{}{} × {}", sum.empty() ? "" : " + ", request.sharding.tensor, bytes.kv());
    total += static_cast<uint64_t>(request.sharding.tensor) * bytes.kv();
  }
  return out + fmt::format("  K and V on all devices: {} = {} bytes\n", sum, total);
}

}  // namespace

Result<std::string> explain_plan(const ModelShape& shape, const PlanRequest& request) {
  KVANT_ASSIGN(const std::vector<ModelStage> stages, shard_model(shape, request.sharding));
  std::string out;
  for (const std::string& format : request.formats) {
    const auto formats = resolve_model_formats(shape, format, request.kv_layers, request.strict);
    if (!formats.ok() && request.skip_refused) continue;
    if (!formats.ok()) return formats.status();
    for (const int64_t tokens : request.tokens) {
      KVANT_ASSIGN(const std::string text, explain_devices(stages, *formats, request, tokens));
      out += fmt::format("{}{}: {}", out.empty() ? "" : "\n", format, text);
    }
  }
  return out;
}

Result<std::string> explain_bytes(const CachePlanner& planner, const SequenceSet& set,
                                  int first_layer) {
  KVANT_ASSIGN(const CacheBytes bytes, planner.bytes(set));
  std::string out = fmt::format("{} sequence{} of {} tokens\n", set.sequences,
                                set.sequences == 1 ? "" : "s", set.tokens);
  uint64_t first = 0, further = 0;
  for (const PlannedGroup& group : planner.groups()) {
    out += explain_group(planner, group, set, first_layer);
    const GroupPages pages = planner.pages(group, set);
    first += bytes_of(group, pages.first);
    further += bytes_of(group, pages.further);
  }
  if (planner.state_bytes() > 0) {
    out += fmt::format("  constant state: {} bytes a sequence, whatever its length\n",
                       planner.state_bytes());
  }
  out += fmt::format("  K and V: {}", first);
  if (set.sequences > 1) out += fmt::format(" + {} × {}", set.sequences - 1, further);
  out += fmt::format(" = {} bytes", bytes.kv());
  if (bytes.state > 0) {
    out += fmt::format("; state {} × {} = {} bytes", set.sequences, planner.state_bytes(),
                       bytes.state);
  }
  out += fmt::format("\n  the same values in bf16, unpadded: {} bytes", bytes.ideal);
  if (bytes.ideal > 0) {
    out += fmt::format("; effective bits = 16 × {} / {} = {:.2f}", bytes.kv(), bytes.ideal,
                       bytes.effective_bits());
  }
  out += fmt::format(
      "\n  to grow to this length the pool needs {} bytes: a page's rows live beside its codes "
      "while it is sealed, and one prompt at a time is read in steps of {} tokens\n",
      bytes.needed, planner.options().step_tokens);
  return out;
}

}  // namespace kvant
