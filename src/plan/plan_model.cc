// plan_model: formats × lengths on the devices of a sharded model, and what a workload asks of
// them.
#include <algorithm>
#include <array>
#include <limits>

#include "cache/read_rule.h"
#include "kvant/plan.h"
#include "plan/plan_notes.h"

namespace kvant {
namespace {

constexpr std::string_view kBaseline = "bf16";

// One format on every pipeline stage.
struct StagedPlanners {
  ResolvedFormats formats;  // of the whole model
  CachePlanner whole;       // unsharded: what is said of a token
  std::vector<CachePlanner> stages;
};

// Of a device's memory and of weights: sums and differences of a few stay within 63 bits.
constexpr uint64_t kMaxMemory = uint64_t{1} << 60;

uint64_t saturating_sub(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// exhausted tells that memory is short; here a number is too large.
Status too_large(const Status& status, const std::string& format, const SequenceSet& set) {
  if (status.code() != Code::kExhausted) return status;
  return invalid_argument(format + ", " + std::to_string(set.sequences) +
                          (set.sequences == 1 ? " sequence of " : " sequences of ") +
                          std::to_string(set.tokens) + " tokens: " + status.message());
}

// What a request asks of every format alike.
class Planning {
 public:
  Planning(const ModelShape& shape, const PlanRequest& request)
      : shape_(shape), request_(request) {}

  Status shard() {
    KVANT_ASSIGN(stages_, shard_model(shape_, request_.sharding));
    return {};
  }
  std::span<const ModelStage> stages() const { return stages_; }

  Result<StagedPlanners> bind(const std::string& format) const {
    KVANT_ASSIGN(ResolvedFormats formats,
                 resolve_model_formats(shape_, format, request_.kv_layers, request_.strict));
    KVANT_ASSIGN(CachePlanner whole,
                 CachePlanner::create(shape_, formats.effective, request_.options));
    StagedPlanners out{.formats = std::move(formats), .whole = std::move(whole), .stages = {}};
    PlanOptions options = request_.options;
    options.context_ranks = request_.sharding.context;
    for (const ModelStage& stage : stages_) {
      const auto of_stage =
          std::span(out.formats.effective)
              .subspan(static_cast<size_t>(stage.first_layer), stage.shape.layers.size());
      KVANT_ASSIGN(CachePlanner planner, CachePlanner::create(stage.shape, of_stage, options));
      out.stages.push_back(std::move(planner));
    }
    return out;
  }

  Result<PlanRow> row(const std::string& format, const StagedPlanners& planners,
                      const SequenceSet& set) const {
    Result<PlanRow> row = row_of(format, planners, set);
    if (!row.ok()) return too_large(row.status(), format, set);
    return row;
  }

  // Of one device: context ranks hold all weights, tensor and pipeline ranks their share.
  uint64_t device_weights() const {
    const auto ranks = static_cast<uint64_t>(request_.sharding.tensor) *
                       static_cast<uint64_t>(request_.sharding.pipeline);
    return (request_.weight_bytes + ranks - 1) / ranks;
  }

 private:
  Result<PlanRow> row_of(const std::string& format, const StagedPlanners& planners,
                         const SequenceSet& set) const {
    PlanRow row;
    row.format = format;
    row.pair = main_pair(planners.formats.effective);
    row.tokens = set.tokens;
    row.sequences = set.sequences;
    row.bytes_per_token = planners.whole.bytes_per_token();
    row.bytes_per_token_long = planners.whole.bytes_per_token_long();
    row.nominal_bits = planners.whole.nominal_bits();
    row.sealed_bits = planners.whole.sealed_bits();
    const auto copies = static_cast<uint64_t>(request_.sharding.tensor) *
                        static_cast<uint64_t>(request_.sharding.context);
    for (const CachePlanner& stage : planners.stages) {
      KVANT_ASSIGN(const CacheBytes bytes, stage.bytes(set));
      KVANT_TRY(add(bytes, copies, row.bytes));
      row.device_bytes = std::max(row.device_bytes, bytes.kv() + bytes.state);
      row.device_needed = std::max(row.device_needed, bytes.needed);
    }
    // What is copied to several devices is stored more than once; the tokens' own values aren't.
    KVANT_ASSIGN(const CacheBytes once, planners.whole.bytes(set));
    row.bytes.ideal = once.ideal;
    row.effective_bits = once.effective_bits();
    if (request_.memory) KVANT_TRY(set_capacity(planners, set, row));
    return row;
  }

  // What fits beside the weights, on the device where least does.
  Status set_capacity(const StagedPlanners& planners, const SequenceSet& set, PlanRow& row) const {
    const uint64_t room = room_for_cache();
    row.available_bytes = room;
    row.spare_bytes = static_cast<int64_t>(room) - static_cast<int64_t>(row.device_needed) -
                      static_cast<int64_t>(overdrawn());
    row.fits = row.spare_bytes >= 0;
    const int64_t model_limit =
        shape_.max_positions > 0 ? shape_.max_positions : kMaxSequenceTokens;
    row.max_sequences = std::numeric_limits<int64_t>::max();
    row.max_context = model_limit;
    for (const CachePlanner& stage : planners.stages) {
      KVANT_ASSIGN(const int64_t most, stage.max_sequences(set, room));
      KVANT_ASSIGN(const int64_t longest, stage.max_tokens(set, room, model_limit));
      row.max_sequences = std::min(row.max_sequences, overdrawn() > 0 ? 0 : most);
      row.max_context = std::min(row.max_context, overdrawn() > 0 ? 0 : longest);
    }
    row.context_is_models = shape_.max_positions > 0 && row.max_context == model_limit;
    return {};
  }

  uint64_t taken() const {
    return device_weights() + request_.memory->workspace + request_.memory->activation;
  }
  uint64_t room_for_cache() const { return saturating_sub(request_.memory->total, taken()); }
  // What is missing before the cache takes a byte.
  uint64_t overdrawn() const { return saturating_sub(taken(), request_.memory->total); }

  static Status add(const CacheBytes& bytes, uint64_t copies, CacheBytes& sum) {
    const auto add_to = [&](uint64_t part, uint64_t& total) {
      uint64_t product = 0;
      return !__builtin_mul_overflow(part, copies, &product) &&
             !__builtin_add_overflow(total, product, &total) && total <= INT64_MAX;
    };
    if (add_to(bytes.sealed, sum.sealed) && add_to(bytes.exact, sum.exact) &&
        add_to(bytes.state, sum.state) && add_to(bytes.needed, sum.needed))
      return {};
    return exhausted("the cache takes more than 2^63 bytes on all devices");
  }

  // The pair that most layers with a cache have.
  FormatPair main_pair(std::span<const FormatPair> pairs) const {
    std::vector<std::pair<FormatPair, int>> counts;
    for (size_t l = 0; l < pairs.size(); ++l) {
      if (shape_.layers[l].streams.empty()) continue;
      const auto at = std::find_if(counts.begin(), counts.end(),
                                   [&](const auto& c) { return c.first == pairs[l]; });
      if (at == counts.end()) {
        counts.emplace_back(pairs[l], 1);
      } else {
        ++at->second;
      }
    }
    const auto most =
        std::max_element(counts.begin(), counts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == counts.end() ? FormatPair{std::string(kBaseline), std::string(kBaseline)}
                                : most->first;
  }

  const ModelShape& shape_;
  const PlanRequest& request_;
  std::vector<ModelStage> stages_;
};

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

Status check_request(const PlanRequest& request) {
  KVANT_TRY(check_sequences("batch", request.batch, request.beams));
  for (const int64_t tokens : request.tokens) KVANT_TRY(check_positive_count("tokens", tokens));
  KVANT_TRY(check_memory("weights", request.weight_bytes));
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
void set_gain(const PlanRow& baseline, uint64_t weights, WorkloadRow& row) {
  const double before = static_cast<double>(baseline.device_bytes);
  const double after = static_cast<double>(row.average.device_bytes);
  if (before == 0 || after == 0) return;
  row.share = before / (before + static_cast<double>(weights));
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
  KVANT_ASSIGN(row.average,
               planning.row(format, planners, at(load.prompt.average + load.output.average)));
  KVANT_ASSIGN(row.p95, planning.row(format, planners, at(load.prompt.p95 + load.output.p95)));
  return row;
}

void add_notes(std::span<const std::string> from, std::vector<std::string>& to) {
  for (const std::string& note : from) {
    if (std::find(to.begin(), to.end(), note) == to.end()) to.push_back(note);
  }
}

// The best format, by measured quality where it was measured and in the order asked for otherwise,
// that fits the workload's P95.
std::string best_that_fits(const std::vector<WorkloadRow>& rows) {
  const auto rank = [](const std::string& format) {
    const auto order = formats_by_quality();
    return std::find(order.begin(), order.end(), format) - order.begin();
  };
  const WorkloadRow* best = nullptr;
  for (const WorkloadRow& row : rows) {
    if (!row.p95.fits.value_or(false)) continue;
    if (best == nullptr || rank(row.p95.format) < rank(best->p95.format)) best = &row;
  }
  return best == nullptr ? "" : best->p95.format;
}

}  // namespace

std::span<const std::string_view> formats_by_quality() {
  static constexpr std::array<std::string_view, 12> kOrder = {
      "f32", "bf16", "f16",   "int8", "int8_token", "k8v4",
      "fp8", "int4", "kivi4", "int3", "int2",       "kivi2"};
  return kOrder;
}

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
  KVANT_TRY(check_request(request));
  Planning planning(shape, request);
  KVANT_TRY(planning.shard());
  Plan plan;
  plan.notes = shape.notes;
  for (const ModelStage& stage : planning.stages()) add_notes(stage.shape.notes, plan.notes);
  std::vector<FormatFallback> fallbacks;
  std::vector<LeftOut> left_out;
  std::vector<std::string> slow;
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
    plan.workload.push_back(std::move(row));
  }
  add_notes(fallback_notes(shape, fallbacks), plan.notes);
  add_notes(left_out_notes(left_out), plan.notes);
  add_notes(slow, plan.notes);
  add_notes(source_notes(shape, request), plan.notes);
  add_notes(length_notes(shape, request.tokens), plan.notes);
  if (plan.rows.empty() && !left_out.empty())
    return unsupported(left_out.front().format + ": " + left_out.front().reason);
  if (request.workload) {
    KVANT_ASSIGN(const StagedPlanners exact, planning.bind(std::string(kBaseline)));
    KVANT_ASSIGN(const WorkloadRow baseline,
                 workload_row(shape, request, planning, std::string(kBaseline), exact));
    for (WorkloadRow& row : plan.workload)
      set_gain(baseline.average, planning.device_weights(), row);
    if (request.memory) plan.first_fit = best_that_fits(plan.workload);
  }
  return plan;
}

}  // namespace kvant
