// explain_plan: the rows of a plan as calculations, on its devices and for its workload.
#include <fmt/format.h>

#include "plan/explain.h"
#include "plan/planning.h"

namespace kvant {
namespace {

// Sequences of a row, and whether it is a workload's.
struct AskedLength {
  int64_t tokens = 0;
  int64_t requests = 0;
};

std::vector<AskedLength> asked_lengths(const PlanRequest& request) {
  std::vector<AskedLength> lengths;
  for (const int64_t tokens : request.tokens) lengths.push_back({tokens, request.batch});
  if (!request.workload) return lengths;
  const Workload& load = *request.workload;
  lengths.push_back({load.total().average, load.concurrency});
  if (load.total().p95 != lengths.back().tokens)
    lengths.push_back({load.total().p95, load.concurrency});
  return lengths;
}

// One stage on one of its devices, and on all of them.
Result<std::string> explain_stage(const Planning& planning, const StagedPlanners& planners,
                                  size_t stage, const PlanRequest& request,
                                  const SequenceSet& set) {
  const CachePlanner& device = planners.devices[stage];
  const Sharding& sharding = request.sharding;
  const int64_t devices = int64_t{sharding.tensor} * sharding.context;
  KVANT_ASSIGN(const std::string totals, explain_totals(device, set));
  std::string out = fmt::format(
      "  -- {} of stage {}\n",
      devices == 1 ? "the device" : fmt::format("the fullest of the {} devices", devices), stage);
  out += explain_groups(device, set, planning.stages()[stage].first_layer) + totals;
  if (sharding.context == 1) return out;
  KVANT_ASSIGN(const CacheBytes all, planners.stages[stage].bytes(set));
  return out + fmt::format("  K and V on its {} context ranks together: {} bytes\n",
                           sharding.context,
                           equation(kv_calculation(planners.stages[stage], set), all.kv()));
}

Result<std::string> explain_devices(const Planning& planning, const StagedPlanners& planners,
                                    const PlanRequest& request, const SequenceSet& set) {
  std::string out;
  std::vector<std::string> sum;
  uint64_t total = 0;
  for (size_t s = 0; s < planning.stages().size(); ++s) {
    KVANT_ASSIGN(const std::string text, explain_stage(planning, planners, s, request, set));
    KVANT_ASSIGN(const CacheBytes all, planners.stages[s].bytes(set));
    out += text;
    sum.push_back(
        product_text({fmt::format("{}", request.sharding.tensor), fmt::format("{}", all.kv())}));
    total += static_cast<uint64_t>(request.sharding.tensor) * all.kv();
  }
  return out + fmt::format("  K and V on all {} devices: {} bytes\n", request.sharding.devices(),
                           equation(sum_text(sum), total));
}

// Weights of the device with least to spare.
std::string explain_weights(const ModelShape& shape, const Planning& planning,
                            const PlanRequest& request, const PlanRow& row) {
  const std::string all = fmt::format("{}", request.weight_bytes);
  std::string out = fmt::format(
      "  weights: {} bytes\n",
      request.weight_calculation.empty() ? all : request.weight_calculation + " = " + all);
  size_t stage = 0;
  for (size_t s = 0; s < planning.stages().size(); ++s) {
    if (planning.device_weights(s) == row.device_weights) stage = s;
  }
  const EndWeights& ends = request.ends;
  const size_t stages = planning.stages().size();
  if (stages == 1 && request.sharding.tensor == 1) return out;
  std::string share = all;
  if (stages > 1) {
    const uint64_t apart = ends.embeddings + (ends.tied ? 0 : ends.output);
    share = fmt::format("{} × {} / {}", apart > 0 ? fmt::format("({} - {})", all, apart) : all,
                        planning.stages()[stage].shape.layers.size(), shape.layers.size());
    if (stage == 0 && ends.embeddings > 0)
      share += fmt::format(" + {} of embeddings", ends.embeddings);
    if (stage + 1 == stages && ends.output > 0)
      share += fmt::format(" + {} of the output matrix", ends.output);
  }
  if (request.sharding.tensor > 1) share = fmt::format("({}) / {}", share, request.sharding.tensor);
  return out + fmt::format("  weights of a device of stage {}: {} = {} bytes\n", stage, share,
                           row.device_weights);
}

std::string explain_memory(const ModelShape& shape, const Planning& planning,
                           const PlanRequest& request, const PlanRow& row) {
  const DeviceMemory& memory = *request.memory;
  std::string out = explain_weights(shape, planning, request, row);
  std::string left = fmt::format("{} - {} of weights", memory.total, row.device_weights);
  if (memory.workspace > 0) left += fmt::format(" - {} of workspace", memory.workspace);
  if (memory.activation > 0) left += fmt::format(" - {} of activations", memory.activation);
  if (row.available_bytes > 0) {
    out += fmt::format("  left for the cache: {} = {} bytes\n", left, row.available_bytes);
  }
  return out + fmt::format("  {}: {} - {} needed = {} bytes\n", *row.fits ? "free" : "short", left,
                           row.device_needed, row.spare_bytes);
}

std::string explain_gain(const WorkloadRow& row, const WorkloadRow& baseline) {
  if (baseline.average.device_bytes == 0 || row.average.device_bytes == 0) return "";
  const uint64_t cache = baseline.average.device_bytes;
  const std::string share = exact_number(row.share), compression = exact_number(row.compression);
  std::string out = fmt::format(
      "\n{}, of the workload's average request on the fullest device\n"
      "  share of the cache in bf16: {} / ({} + {} of weights) = {}\n"
      "  compression: {} / {} = {}\n"
      "  gain: 1 / (1 - {} + {} / {}) = {}\n",
      row.average.format, cache, cache, baseline.average.device_weights, share, cache,
      row.average.device_bytes, compression, share, share, compression,
      exact_number(row.expected_gain));
  if (row.exact_gain) {
    out += fmt::format("  exact gain: {} sequences / {} in bf16 = {}\n", row.average.max_sequences,
                       baseline.average.max_sequences, exact_number(*row.exact_gain));
  }
  return out;
}

Result<std::string> explain_length(const ModelShape& shape, const Planning& planning,
                                   const StagedPlanners& planners, const PlanRequest& request,
                                   const std::string& format, const AskedLength& length) {
  const SequenceSet set = sequences_of(shape, request, length.tokens, length.requests);
  const bool several = request.sharding.devices() > 1;
  KVANT_ASSIGN(std::string out, explain_bytes(planners.whole, set));
  if (several) {
    KVANT_ASSIGN(const std::string devices, explain_devices(planning, planners, request, set));
    out = "one copy of the cache, " + out + devices;
  }
  if (request.memory) {
    KVANT_ASSIGN(const PlanRow row, planning.row(format, planners, set));
    out += explain_memory(shape, planning, request, row);
  }
  return fmt::format("{}: {}", format, out);
}

}  // namespace

Result<std::string> explain_plan(const ModelShape& shape, const PlanRequest& request) {
  Planning planning(shape, request);
  KVANT_TRY(planning.shard());
  std::string out;
  for (const std::string& format : request.formats) {
    const Result<StagedPlanners> planners = planning.bind(format);
    if (!planners.ok() && request.skip_refused) continue;
    if (!planners.ok()) return planners.status();
    for (const AskedLength& length : asked_lengths(request)) {
      KVANT_ASSIGN(const std::string text,
                   explain_length(shape, planning, *planners, request, format, length));
      out += (out.empty() ? "" : "\n") + text;
    }
  }
  if (!request.workload || !request.memory) return out;
  KVANT_ASSIGN(const Plan plan, plan_model(shape, request));
  PlanRequest baseline_request = request;
  baseline_request.formats = {kBaselineFormat};
  baseline_request.tokens.clear();
  KVANT_ASSIGN(const Plan baseline, plan_model(shape, baseline_request));
  for (const WorkloadRow& row : plan.workload) {
    if (row.average.format != kBaselineFormat) out += explain_gain(row, baseline.workload.front());
  }
  return out;
}

}  // namespace kvant
