// A plan for programs: JSON and CSV.
#include "cli/plan_layers.h"
#include "cli/plan_report.h"

namespace kvant::cli {
namespace {

Json stream_json(const CacheStream& stream) {
  return {{"kind", stream_kind_name(stream.kind)},
          {"kv_heads", stream.heads},
          {"k_dim", stream.k_dim},
          {"v_dim", stream.v_dim},
          {"window", stream.window},
          {"tokens_per_entry", stream.tokens_per_entry}};
}

Json layer_json(const PlanReport& report, size_t index) {
  const ModelLayer& layer = report.shape.layers[index];
  const CacheStream main =
      layer.streams.empty() || layer.shares >= 0 ? CacheStream() : layer.streams.front();
  Json json = {{"index", index},
               {"kind", layer_kind(layer)},
               {"kv_heads", main.heads},
               {"k_dim", main.k_dim},
               {"v_dim", main.v_dim},
               {"window", main.window},
               {"bytes_per_token", layer_bytes_per_token(report, static_cast<int>(index))},
               {"fixed_bytes", layer.state.bytes()}};
  if (layer.shares >= 0) json["shares"] = layer.shares;
  if (layer.streams.size() > 1) {
    json["streams"] = Json::array();
    for (const CacheStream& stream : layer.streams) json["streams"].push_back(stream_json(stream));
  }
  return json;
}

Json row_json(const PlanRow& row, const PlanRequest& request) {
  Json json = {{"format", row.format},
               {"k_format", row.pair.key},
               {"v_format", row.pair.value},
               {"tokens", row.tokens},
               {"batch", row.sequences / request.beams},
               {"beams", request.beams},
               {"kv_bytes", row.bytes.kv()},
               {"ideal_kv_bytes", row.bytes.ideal},
               {"state_bytes", row.bytes.state},
               {"needed_bytes", row.bytes.needed},
               {"device_bytes", row.device_bytes},
               {"device_needed_bytes", row.device_needed},
               {"bytes_per_token", row.bytes_per_token},
               {"bytes_per_token_long", row.bytes_per_token_long},
               {"nominal_bits", row.nominal_bits.both},
               {"sealed_bits", row.sealed_bits.both},
               {"k_sealed_bits", row.sealed_bits.key},
               {"v_sealed_bits", row.sealed_bits.value},
               {"effective_bits", row.effective_bits},
               {"fits", row.fits ? Json(*row.fits) : Json()},
               {"available_bytes", row.fits ? Json(row.available_bytes) : Json()},
               {"spare_bytes", row.fits ? Json(row.spare_bytes) : Json()},
               {"max_sequences", row.fits ? Json(row.max_sequences) : Json()},
               {"max_context", row.fits ? Json(row.max_context) : Json()}};
  return json;
}

Json workload_json(const WorkloadRow& row, const PlanRequest& request) {
  return {{"format", row.average.format},
          {"average", row_json(row.average, request)},
          {"p95", row_json(row.p95, request)},
          {"cache_share", row.share},
          {"compression", row.compression},
          {"expected_gain", row.expected_gain},
          {"exact_gain", optional_json(row.exact_gain)}};
}

}  // namespace

Json plan_json(const PlanReport& report) {
  Json json = {{"model", report.shape.source},
               {"architecture", report.shape.architecture},
               {"max_positions", report.shape.max_positions},
               {"parameters", report.shape.num_parameters},
               {"head_dim_from", report.shape.head_dim_from},
               {"weight_bytes", report.request.weight_bytes},
               {"weight_calculation", report.request.weight_calculation},
               {"layers_format", report.first_format},
               {"layers", Json::array()},
               {"rows", Json::array()}};
  for (size_t l = 0; l < report.shape.layers.size(); ++l)
    json["layers"].push_back(layer_json(report, l));
  for (const PlanRow& row : report.plan.rows) json["rows"].push_back(row_json(row, report.request));
  if (report.request.workload) {
    json["workload"] = Json::array();
    for (const WorkloadRow& row : report.plan.workload)
      json["workload"].push_back(workload_json(row, report.request));
    json["tried"] = report.plan.tried;
    json["first_fit"] = report.plan.first_fit.empty() ? Json() : Json(report.plan.first_fit);
  }
  json["notes"] = report.plan.notes;
  return json;
}

std::string plan_csv(const PlanReport& report) {
  const auto with_gain = [&](const PlanRow& row, const char* which, const WorkloadRow* load) {
    Json json = row_json(row, report.request);
    json["row"] = which;
    json["cache_share"] = load == nullptr ? Json() : Json(load->share);
    json["compression"] = load == nullptr ? Json() : Json(load->compression);
    json["expected_gain"] = load == nullptr ? Json() : Json(load->expected_gain);
    json["exact_gain"] = load == nullptr ? Json() : optional_json(load->exact_gain);
    return json;
  };
  std::vector<Json> lines;
  for (const PlanRow& row : report.plan.rows) lines.push_back(with_gain(row, "tokens", nullptr));
  for (const WorkloadRow& load : report.plan.workload) {
    lines.push_back(with_gain(load.average, "average", &load));
    lines.push_back(with_gain(load.p95, "p95", &load));
  }
  return csv_table(lines);
}

}  // namespace kvant::cli
