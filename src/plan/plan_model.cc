// plan_model: formats × lengths on the devices of a sharded model, and what a workload asks of
// them.
#include <algorithm>
#include <limits>

#include "cache/read_rule.h"
#include "kvant/plan.h"
#include "plan/format_quality.h"
#include "plan/plan_notes.h"
#include "plan/planning.h"

namespace kvant {
namespace {

// Of a device's memory and of weights: sums and differences of a few stay within 63 bits.
constexpr uint64_t kMaxMemory = uint64_t{1} << 60;

Status check_positive_count(const char* what, int64_t value) {
  if (value >= 1 && value <= kMaxSequenceTokens) return {};
  return invalid_argument(std::string(what) + ": " + std::to_string(value) + ", wanted 1 to " +
                          std::to_string(kMaxSequenceTokens));
}

// Requests of `beams` sequences each.
Status check_sequences(const char* what, int64_t requests, int64_t beams) {
  KVANT_TRY(check_positive_count(what, requests));
  KVANT_TRY(check_positive_count("beams", beams));
  if (requests <= kMaxSequenceTokens / beams) return {};
  return invalid_argument(std::string(what) + " " + std::to_string(requests) + " of " +
                          std::to_string(beams) + " beams: wanted at most " +
                          std::to_string(kMaxSequenceTokens) + " sequences");
}

Status check_memory(const char* what, uint64_t bytes) {
  if (bytes <= kMaxMemory) return {};
  return invalid_argument(std::string(what) + ": " + std::to_string(bytes) +
                          " bytes, wanted at most 2^60");
}

Status check_prefix(const PlanRequest& request) {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (const int64_t tokens : request.tokens) shortest = std::min(shortest, tokens);
  if (request.workload) shortest = std::min(shortest, request.workload->prompt.average);
  if (request.shared_prefix <= shortest) return {};
  return invalid_argument("a shared prefix of " + std::to_string(request.shared_prefix) +
                          " tokens is longer than the " + std::to_string(shortest) + " of " +
                          (request.workload && shortest == request.workload->prompt.average
                               ? "an average prompt"
                               : "a sequence"));
}

Status check_request(const ModelShape& shape, const PlanRequest& request) {
  KVANT_TRY(check_prefix(request));
  if (request.source_tokens > 0 && !has_cross_attention(shape)) {
    return invalid_argument("source tokens: " + std::to_string(request.source_tokens) + ", but " +
                            shape.architecture + " has no cross attention");
  }
  KVANT_TRY(check_sequences("batch", request.batch, request.beams));
  for (const int64_t tokens : request.tokens) KVANT_TRY(check_positive_count("tokens", tokens));
  KVANT_TRY(check_memory("weights", request.weight_bytes));
  KVANT_TRY(check_memory("embeddings", request.ends.embeddings));
  KVANT_TRY(check_memory("the output matrix", request.ends.output));
  const DeviceMemory memory = request.memory.value_or(DeviceMemory());
  KVANT_TRY(check_memory("the device's memory", memory.total));
  KVANT_TRY(check_memory("workspace", memory.workspace));
  KVANT_TRY(check_memory("activations", memory.activation));
  if (!request.workload) return {};
  const Workload& load = *request.workload;
  KVANT_TRY(check_sequences("concurrency", load.concurrency, request.beams));
  for (const auto& [what, spread] : {std::pair{"prompt", load.prompt}, {"output", load.output}}) {
    KVANT_TRY(check_positive_count(what, spread.average));
    KVANT_TRY(check_positive_count(what, spread.p95));
    if (spread.p95 < spread.average) {
      return invalid_argument(std::string(what) + ": a 95th percentile of " +
                              std::to_string(spread.p95) + " tokens below the average of " +
                              std::to_string(spread.average));
    }
  }
  return {};
}

// 1 / (1 − β + β/c): β of the memory, at bf16, is cache, which gets c times smaller.
void set_gain(const PlanRow& baseline, WorkloadRow& row) {
  const double before = static_cast<double>(baseline.device_bytes);
  const double after = static_cast<double>(row.average.device_bytes);
  if (before == 0 || after == 0) return;
  row.share = before / (before + static_cast<double>(baseline.device_weights));
  row.compression = before / after;
  row.expected_gain = 1 / (1 - row.share + row.share / row.compression);
  if (baseline.max_sequences > 0) {
    row.exact_gain = static_cast<double>(row.average.max_sequences) /
                     static_cast<double>(baseline.max_sequences);
  }
}

Result<WorkloadRow> workload_row(const ModelShape& shape, const PlanRequest& request,
                                 const Planning& planning, const std::string& format,
                                 const StagedPlanners& planners) {
  const Workload& load = *request.workload;
  WorkloadRow row;
  const auto at = [&](int64_t tokens) {
    return sequences_of(shape, request, tokens, load.concurrency);
  };
  KVANT_ASSIGN(row.average, planning.row(format, planners, at(load.total().average)));
  KVANT_ASSIGN(row.p95, planning.row(format, planners, at(load.total().p95)));
  return row;
}

// Of the rows and of the workload, rising.
std::vector<int64_t> lengths_of(const PlanRequest& request) {
  std::vector<int64_t> lengths = request.tokens;
  if (request.workload) {
    const Workload& load = *request.workload;
    lengths.push_back(load.total().average);
    lengths.push_back(load.total().p95);
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

void add_notes(std::span<const std::string> from, std::vector<std::string>& to) {
  for (const std::string& note : from) {
    if (std::find(to.begin(), to.end(), note) == to.end()) to.push_back(note);
  }
}

// What presets depend on in the first layer that was asked to have this pair.
ModelTraits traits_of(const ModelShape& shape, std::span<const FormatPair> requested,
                      const FormatPair& pair) {
  ModelTraits traits = shape.traits;
  for (size_t l = 0; l < requested.size(); ++l) {
    const ModelLayer& layer = shape.layers[l];
    if (layer.streams.empty() || layer.shares >= 0 || requested[l] != pair) continue;
    traits.value_dim = layer.streams.front().v_dim;
    if (l < shape.calibrated.size()) traits.calibrated = shape.calibrated[l];
    break;
  }
  return traits;
}

// The first format in `order` that fits the workload's P95.
std::string first_that_fits(const std::vector<WorkloadRow>& rows,
                            std::span<const std::string> order) {
  for (const std::string& format : order) {
    for (const WorkloadRow& row : rows) {
      if (row.p95.format == format && row.p95.fits.value_or(false)) return format;
    }
  }
  return "";
}

void choose_format(const Planning& planning, std::span<const RankedFormat> ranked, Plan& plan) {
  const auto bits_of = [&](const std::string& format) {
    const Result<StagedPlanners> planners = planning.bind(format);
    return planners.ok() ? planners->whole.sealed_bits().both : 0;
  };
  QualityOrder order = order_by_quality(ranked, bits_of);
  plan.first_fit = first_that_fits(plan.workload, order.formats);
  add_notes(by_bits_notes(order.by_bits), plan.notes);
  plan.tried = std::move(order.formats);
}

}  // namespace

SequenceSet sequences_of(const ModelShape& shape, const PlanRequest& request, int64_t tokens,
                         int64_t requests) {
  const int64_t source = request.source_tokens > 0 ? request.source_tokens
                         : shape.source_tokens > 0 ? shape.source_tokens
                                                   : tokens;
  int64_t sequences = 0;
  if (__builtin_mul_overflow(requests, request.beams, &sequences))
    sequences = std::numeric_limits<int64_t>::max();
  return {.tokens = tokens,
          .sequences = sequences,
          .shared_prefix = request.shared_prefix,
          .source_tokens = source};
}

Result<Plan> plan_model(const ModelShape& shape, const PlanRequest& request) {
  KVANT_TRY(check_request(shape, request));
  Planning planning(shape, request);
  KVANT_TRY(planning.shard());
  Plan plan;
  plan.notes = shape.notes;
  for (const ModelStage& stage : planning.stages()) add_notes(stage.shape.notes, plan.notes);
  std::vector<FormatFallback> fallbacks;
  std::vector<LeftOut> left_out;
  std::vector<std::string> slow;
  std::vector<RankedFormat> ranked;
  for (const std::string& format : request.formats) {
    const Result<StagedPlanners> planners = planning.bind(format);
    if (!planners.ok()) {
      if (!request.skip_refused) return planners.status().with_context(format);
      left_out.push_back({format, planners.status().message()});
      continue;
    }
    const ResolvedFormats& formats = planners->formats;
    fallbacks.insert(fallbacks.end(), formats.fallbacks.begin(), formats.fallbacks.end());
    add_notes(std::span(formats.notes).subspan(formats.fallbacks.size()), slow);
    for (const int64_t tokens : request.tokens) {
      KVANT_ASSIGN(PlanRow row, planning.row(format, *planners,
                                             sequences_of(shape, request, tokens, request.batch)));
      plan.rows.push_back(std::move(row));
    }
    if (!request.workload) continue;
    KVANT_ASSIGN(WorkloadRow row, workload_row(shape, request, planning, format, *planners));
    const FormatPair pair = planning.main_pair(formats.requested);
    ranked.push_back({.name = format,
                      .pair = pair,
                      .traits = traits_of(shape, formats.requested, pair),
                      .bits = planners->whole.sealed_bits().both});
    plan.workload.push_back(std::move(row));
  }
  add_notes(fallback_notes(shape, fallbacks), plan.notes);
  add_notes(left_out_notes(left_out), plan.notes);
  add_notes(slow, plan.notes);
  add_notes(source_notes(shape, request), plan.notes);
  add_notes(length_notes(shape, lengths_of(request)), plan.notes);
  if (plan.rows.empty() && plan.workload.empty() && !left_out.empty())
    return unsupported(left_out.front().format + ": " + left_out.front().reason);
  if (request.workload) {
    KVANT_ASSIGN(const StagedPlanners exact, planning.bind(kBaselineFormat));
    KVANT_ASSIGN(const WorkloadRow baseline,
                 workload_row(shape, request, planning, kBaselineFormat, exact));
    for (WorkloadRow& row : plan.workload) set_gain(baseline.average, row);
    if (request.memory) choose_format(planning, ranked, plan);
  }
  return plan;
}

}  // namespace kvant
