#include "plan/planning.h"

#include <algorithm>
#include <limits>

#include "cache/read_rule.h"

namespace kvant {
namespace {

__extension__ typedef unsigned __int128 Wide;

uint64_t saturating_sub(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

uint64_t divide_up(Wide value, Wide by) { return static_cast<uint64_t>((value + by - 1) / by); }

// exhausted tells that memory is short; here a number is too large.
Status too_large(const Status& status, const std::string& format, const SequenceSet& set) {
  if (status.code() != Code::kExhausted) return status;
  return invalid_argument(format + ", " + std::to_string(set.sequences) +
                          (set.sequences == 1 ? " sequence of " : " sequences of ") +
                          std::to_string(set.tokens) + " tokens: " + status.message());
}

Status add_product(uint64_t part, uint64_t copies, uint64_t& total) {
  uint64_t product = 0;
  if (!__builtin_mul_overflow(part, copies, &product) &&
      !__builtin_add_overflow(total, product, &total) && total <= INT64_MAX)
    return {};
  return exhausted("the cache takes more than 2^63 bytes on all devices");
}

}  // namespace

bool has_cross_attention(const ModelShape& shape) {
  for (const ModelLayer& layer : shape.layers) {
    for (const CacheStream& stream : layer.streams) {
      if (stream.kind == StreamKind::kCross) return true;
    }
  }
  return false;
}

Status Planning::shard() {
  KVANT_ASSIGN(stages_, shard_model(shape_, request_.sharding));
  return {};
}

Result<StagedPlanners> Planning::bind(const std::string& format) const {
  KVANT_ASSIGN(ResolvedFormats formats,
               resolve_model_formats(shape_, format, request_.kv_layers, request_.strict));
  KVANT_ASSIGN(CachePlanner whole,
               CachePlanner::create(shape_, formats.effective, request_.options));
  StagedPlanners out{
      .formats = std::move(formats), .whole = std::move(whole), .stages = {}, .devices = {}};
  PlanOptions dealt = request_.options;
  dealt.context_ranks = request_.sharding.context;
  for (const ModelStage& stage : stages_) {
    const auto of_stage =
        std::span(out.formats.effective)
            .subspan(static_cast<size_t>(stage.first_layer), stage.shape.layers.size());
    KVANT_ASSIGN(CachePlanner all, CachePlanner::create(stage.shape, of_stage, request_.options));
    KVANT_ASSIGN(CachePlanner device, CachePlanner::create(stage.shape, of_stage, dealt));
    out.stages.push_back(std::move(all));
    out.devices.push_back(std::move(device));
  }
  return out;
}

Result<PlanRow> Planning::row(const std::string& format, const StagedPlanners& planners,
                              const SequenceSet& set) const {
  Result<PlanRow> row = row_of(format, planners, set);
  if (!row.ok()) return too_large(row.status(), format, set);
  return row;
}

Result<PlanRow> Planning::row_of(const std::string& format, const StagedPlanners& planners,
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
  for (size_t s = 0; s < stages_.size(); ++s) KVANT_TRY(add_stage(planners, s, set, row));
  KVANT_ASSIGN(const CacheBytes once, planners.whole.bytes(set));
  row.bytes.ideal = once.ideal;
  row.effective_bits = once.effective_bits();
  if (request_.memory) KVANT_TRY(set_capacity(planners, set, row));
  return row;
}

Status Planning::add_stage(const StagedPlanners& planners, size_t stage, const SequenceSet& set,
                           PlanRow& row) const {
  const auto tensor = static_cast<uint64_t>(request_.sharding.tensor);
  const auto context = static_cast<uint64_t>(request_.sharding.context);
  KVANT_ASSIGN(const CacheBytes all, planners.stages[stage].bytes(set));
  KVANT_TRY(add_product(all.sealed, tensor, row.bytes.sealed));
  KVANT_TRY(add_product(all.exact, tensor, row.bytes.exact));
  KVANT_TRY(add_product(all.needed - all.state, tensor, row.bytes.needed));
  // Context ranks divide pages among themselves; a state each of them has.
  KVANT_TRY(add_product(all.state, tensor * context, row.bytes.state));
  KVANT_TRY(add_product(all.state, tensor * context, row.bytes.needed));
  KVANT_ASSIGN(const CacheBytes device, planners.devices[stage].bytes(set));
  row.device_bytes = std::max(row.device_bytes, device.kv() + device.state);
  row.device_needed = std::max(row.device_needed, device.needed);
  return {};
}

uint64_t Planning::device_weights(size_t stage) const {
  const EndWeights& ends = request_.ends;
  const uint64_t apart = ends.embeddings + (ends.tied ? 0 : ends.output);
  const Wide of_layers = saturating_sub(request_.weight_bytes, apart);
  const size_t layers = std::max<size_t>(1, shape_.layers.size());
  Wide bytes = divide_up(of_layers * stages_[stage].shape.layers.size(), layers);
  const bool first = stage == 0, last = stage + 1 == stages_.size();
  if (first) bytes += ends.embeddings;
  if (last && !(first && ends.tied)) bytes += ends.output;
  return divide_up(bytes, static_cast<Wide>(request_.sharding.tensor));
}

uint64_t Planning::taken(size_t stage) const {
  return device_weights(stage) + request_.memory->workspace + request_.memory->activation;
}

// What fits beside the weights, on the device where least does.
Status Planning::set_capacity(const StagedPlanners& planners, const SequenceSet& set,
                              PlanRow& row) const {
  // A length beyond the model's own is counted as if the model could have it.
  const bool bounded = shape_.max_positions >= set.tokens;
  const int64_t limit = bounded ? shape_.max_positions : kMaxSequenceTokens;
  row.spare_bytes = row.max_sequences = std::numeric_limits<int64_t>::max();
  row.max_context = limit;
  for (size_t s = 0; s < stages_.size(); ++s) {
    const CachePlanner& device = planners.devices[s];
    KVANT_ASSIGN(const CacheBytes bytes, device.bytes(set));
    const uint64_t total = request_.memory->total;
    const uint64_t room = saturating_sub(total, taken(s));
    const int64_t spare = static_cast<int64_t>(total) - static_cast<int64_t>(taken(s)) -
                          static_cast<int64_t>(bytes.needed);
    if (spare < row.spare_bytes) {
      row.spare_bytes = spare;
      row.available_bytes = room;
      row.device_weights = device_weights(s);
      row.device_needed = bytes.needed;
    }
    const bool overdrawn = taken(s) > total;
    KVANT_ASSIGN(const int64_t most, device.max_sequences(set, room));
    KVANT_ASSIGN(const int64_t longest, device.max_tokens(set, room, limit));
    row.max_sequences = std::min(row.max_sequences, overdrawn ? 0 : most);
    row.max_context = std::min(row.max_context, overdrawn ? 0 : longest);
  }
  row.fits = row.spare_bytes >= 0;
  row.context_is_models = bounded && row.max_context == limit;
  return {};
}

FormatPair Planning::main_pair(std::span<const FormatPair> pairs) const {
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
  return most == counts.end() ? FormatPair{kBaselineFormat, kBaselineFormat} : most->first;
}

}  // namespace kvant
