// kvant plan: the bytes of a model's KV cache, from its configuration alone.

#include <fmt/format.h>

#include <filesystem>

#include "calibrate/sidecar.h"
#include "cli/command.h"
#include "cli/open_model.h"
#include "cli/plan_report.h"
#include "cli/terminal.h"

namespace kvant::cli {
namespace {

constexpr uint64_t kLeastDevice = 1'000'000;

// Of all devices, with what is assumed about them.
Result<WeightEstimate> weights_of(const Settings& s, const ModelShape& shape) {
  int64_t parameters = 0;
  if (!s.parameters.empty()) {
    const Result<int64_t> given = parse_amount(s.parameters);
    if (!given.ok())
      return given.status().with_context(fmt::format("--parameters {}", s.parameters));
    parameters = *given;
  }
  KVANT_ASSIGN(WeightEstimate weights, estimate_weights(shape, s.weights_dtype, parameters));
  if (weights.bytes == 0 && !s.device_memory.empty()) {
    return invalid_argument(
        fmt::format("--device-memory {}: the configuration of {} doesn't tell how many parameters "
                    "the weights are; wanted --parameters, such as 7.6B",
                    s.device_memory, shape.architecture));
  }
  return weights;
}

Result<LengthSpread> spread_of(const std::string& text) {
  const size_t colon = text.find(':');
  LengthSpread spread;
  KVANT_ASSIGN(spread.average, parse_count(text.substr(0, colon)));
  KVANT_ASSIGN(spread.p95, parse_count(colon == text.npos ? text : text.substr(colon + 1)));
  return spread;
}

Status read_workload(const Settings& s, PlanRequest& request) {
  if (s.prompt_spread.empty() && s.output_spread.empty()) {
    if (s.is_given("concurrency"))
      return invalid_argument("--concurrency: wanted --prompt and --output beside it");
    return {};
  }
  if (s.prompt_spread.empty() || s.output_spread.empty()) {
    const bool prompt = s.output_spread.empty();
    return invalid_argument(fmt::format("--{}: wanted --{} beside it", prompt ? "prompt" : "output",
                                        prompt ? "output" : "prompt"));
  }
  Workload load;
  KVANT_ASSIGN(load.prompt, spread_of(s.prompt_spread));
  KVANT_ASSIGN(load.output, spread_of(s.output_spread));
  load.concurrency = s.concurrency;
  request.workload = load;
  return {};
}

Status read_device(const Settings& s, PlanRequest& request) {
  if (s.device_memory.empty()) {
    for (const char* name : {"workspace", "activation", "parameters", "weights-dtype"}) {
      if (s.is_given(name))
        return invalid_argument(fmt::format("--{}: wanted --device-memory beside it", name));
    }
    return {};
  }
  DeviceMemory device;
  KVANT_ASSIGN(device.total, parse_size(s.device_memory));
  if (device.total < kLeastDevice) {
    return invalid_argument(
        fmt::format("--device-memory {}: {} bytes are no device's memory; wanted at least 1 MB, "
                    "such as 24G",
                    s.device_memory, device.total));
  }
  KVANT_ASSIGN(device.workspace, parse_size(s.workspace));
  KVANT_ASSIGN(device.activation, parse_size(s.activation));
  request.memory = device;
  return {};
}

// Formats that can be planned for without calibration.
std::vector<std::string> every_format() {
  std::vector<std::string> names;
  for (const FormatInfo& format : all_formats()) {
    if (format.scale_source != ScaleSource::kGiven && !format.needs.artifacts && format.for_keys &&
        format.for_values)
      names.push_back(format.name);
  }
  return names;
}

// What is assumed about weights becomes a note of the shape.
Result<PlanRequest> request_of(const Settings& s, ModelShape& shape) {
  PlanRequest request;
  request.formats = s.all_formats ? every_format() : split_items(s.kv);
  request.skip_refused = s.all_formats || !s.is_given("kv");
  request.kv_layers = s.kv_layers;
  request.strict = s.strict;
  // A workload has lengths of its own.
  const bool asked = s.prompt_spread.empty() || s.is_given("tokens");
  for (const std::string& item : asked ? split_items(s.token_counts) : std::vector<std::string>()) {
    KVANT_ASSIGN(const int64_t tokens, parse_count(item));
    request.tokens.push_back(tokens);
  }
  request.batch = s.batch;
  request.beams = s.beams;
  request.shared_prefix = s.shared_prefix;
  request.source_tokens = s.source_tokens;
  request.options.sinks = static_cast<int>(s.sinks);
  request.options.exact_window = static_cast<int>(s.exact_window);
  request.sharding = {.tensor = static_cast<int>(s.tensor_ranks),
                      .pipeline = static_cast<int>(s.pipeline_ranks),
                      .context = static_cast<int>(s.context_ranks)};
  KVANT_TRY(read_device(s, request));
  KVANT_TRY(read_workload(s, request));
  KVANT_ASSIGN(const WeightEstimate weights, weights_of(s, shape));
  request.weight_bytes = weights.bytes;
  request.ends = weights.ends;
  request.weight_calculation = weights.calculation;
  if (request.memory)
    shape.notes.insert(shape.notes.end(), weights.notes.begin(), weights.notes.end());
  return request;
}

Result<ModelShape> read_shape(const std::string& model) {
  if (model != "-") return read_model_shape(model);
  KVANT_ASSIGN(const std::string text, read_file("/dev/stdin"));
  if (text.empty()) return invalid_argument("standard input is empty; wanted a config.json");
  if (text.starts_with("GGUF")) {
    return invalid_argument(
        "standard input holds a GGUF file; wanted a config.json there (a GGUF file is read by its "
        "path)");
  }
  return parse_model_shape(text, "standard input");
}

// Where the weights lie that a calibration belongs to; empty where only a configuration is known.
std::filesystem::path weights_beside(const std::filesystem::path& model) {
  std::error_code error;
  if (model.extension() == ".gguf") return model;
  const std::filesystem::path folder =
      std::filesystem::is_directory(model, error) ? model : model.parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") && !name.starts_with("kvant-")) return folder;
  }
  return {};
}

// What --calibration names, or the model's directory holds; nothing where there is none.
Result<std::optional<Sidecar>> plan_calibration(const Invocation& in, ModelShape& shape) {
  const std::filesystem::path model = in.model == "-" ? "" : in.model;
  const std::filesystem::path weights = weights_beside(model);
  std::filesystem::path path = in.settings.calibration;
  std::error_code error;
  if (path.empty() && std::filesystem::exists(model / kSidecarName, error))
    path = model / kSidecarName;
  if (path.empty() || path == "none") return std::optional<Sidecar>();
  KVANT_ASSIGN(Sidecar sidecar, Sidecar::open(path));
  KVANT_TRY(sidecar.scales().check(sidecar.path().string()));
  if (!weights.empty()) {
    KVANT_TRY(sidecar.check_model(weights));
  } else {
    shape.notes.push_back(
        fmt::format("{} has no weights beside it: whether {} is its calibration can't be told",
                    shape.source, sidecar.path().string()));
  }
  return std::optional<Sidecar>(std::move(sidecar));
}

// Presets then mean what they mean where the model runs.
void apply_calibration(const Sidecar& sidecar, ModelShape& shape) {
  for (size_t l = 0; l < shape.layers.size(); ++l) {
    const ModelLayer& layer = shape.layers[l];
    std::vector<std::string>& formats = shape.calibrated.emplace_back();
    if (layer.shares >= 0 || layer.streams.empty()) continue;
    const CacheStream& main = layer.streams.front();
    const auto index = static_cast<int>(l);
    formats = sidecar.formats(index, main.heads, main.k_dim);
    for (std::string& name : sidecar.scales().formats(index, main.heads))
      formats.push_back(std::move(name));
  }
}

}  // namespace

Status run_plan(const Invocation& in) {
  const Settings& s = in.settings;
  if (in.model.empty() && s.given.empty()) return write_text("-", plan_lesson());
  if (in.model.empty()) return invalid_argument("MODEL is missing; see kvant plan --help");
  if (s.all_formats && s.is_given("kv"))
    return invalid_argument("--all-formats and --kv: wanted one of them");
  if (!s.json.empty() && s.json == s.csv)
    return invalid_argument("--json and --csv both go to one place; wanted a file for one of them");
  KVANT_ASSIGN(ModelShape shape, read_shape(in.model));
  KVANT_ASSIGN(const std::optional<Sidecar> calibration, plan_calibration(in, shape));
  if (calibration) apply_calibration(*calibration, shape);
  KVANT_ASSIGN(PlanRequest request, request_of(s, shape));
  KVANT_ASSIGN(const Plan plan, plan_model(shape, request));
  const std::string& first_format =
      plan.rows.empty() ? plan.workload.front().average.format : plan.rows.front().format;
  KVANT_ASSIGN(const ResolvedFormats first,
               resolve_model_formats(shape, first_format, s.kv_layers, s.strict));
  KVANT_ASSIGN(const CachePlanner planner,
               CachePlanner::create(shape, first.effective, request.options));
  const PlanReport report{shape, request, plan, first_format, planner, s.exact_bytes};
  if (!takes_output(s.json) && !takes_output(s.csv)) {
    std::string out = plan_text(report, has_colors(stdout));
    if (s.per_layer) out += plan_layers_text(report);
    if (s.explain) {
      KVANT_ASSIGN(const std::string text, explain_plan(shape, request));
      out += "\n" + text;
    }
    KVANT_TRY(write_text("-", out));
  }
  if (!s.json.empty()) KVANT_TRY(write_json(s.json, plan_json(report)));
  if (!s.csv.empty()) KVANT_TRY(write_text(s.csv, plan_csv(report)));
  // CSV has no place for notes, and they don't get lost beside it.
  if (takes_output(s.csv)) std::fputs(plan_notes_text(report).c_str(), stderr);
  return {};
}

}  // namespace kvant::cli
