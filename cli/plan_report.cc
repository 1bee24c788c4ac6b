#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal.h"

namespace kvant::cli {
namespace {

std::string bytes_text(const PlanReport& report, uint64_t bytes) {
  return report.exact_bytes ? fmt::format("{}", bytes) : human_bytes(static_cast<double>(bytes));
}

// What a layer is, in one word.
std::string layer_kind(const ModelLayer& layer) {
  if (layer.shares >= 0) return "shared";
  if (!layer.streams.empty()) return std::string(stream_kind_name(layer.streams.front().kind));
  return layer.state.is_empty() ? "none" : "state";
}

uint64_t state_bytes(const ModelLayer& layer) {
  return static_cast<uint64_t>(layer.state.recurrent_elements * layer.state.recurrent_bytes +
                               layer.state.conv_elements * layer.state.conv_bytes);
}

// Of one layer, in the report's first format: the shares of its groups.
double layer_bytes_per_token(const PlanReport& report, int layer) {
  double bytes = 0;
  for (const PlannedGroup& group : report.planner.groups()) {
    if (std::find(group.layers.begin(), group.layers.end(), layer) != group.layers.end())
      bytes += group.bytes_per_token() / static_cast<double>(group.layers.size());
  }
  return bytes;
}

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
               {"fixed_bytes", state_bytes(layer)}};
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

std::string fits_text(const PlanReport& report, const PlanRow& row) {
  const auto size = static_cast<uint64_t>(row.spare_bytes < 0 ? -row.spare_bytes : row.spare_bytes);
  return fmt::format("{} {}", bytes_text(report, size), *row.fits ? "free" : "short");
}

Cell fits_cell(const PlanReport& report, const PlanRow& row) {
  return {fits_text(report, row), *row.fits ? Color::kGreen : Color::kRed};
}

std::string context_text(const PlanRow& row) {
  return fmt::format("{}{}", row.max_context, row.context_is_models ? " (model)" : "");
}

// "8.50/4.12"; nothing is said of a V that isn't stored.
std::string sealed_text(const PlanRow& row) {
  const auto side = [](double bits) { return bits > 0 ? fmt::format("{:.2f}", bits) : "-"; };
  return fmt::format("{}/{}", side(row.sealed_bits.key), side(row.sealed_bits.value));
}

std::string rows_table(const PlanReport& report, bool colored) {
  const bool windows = std::any_of(
      report.plan.rows.begin(), report.plan.rows.end(),
      [](const PlanRow& row) { return row.bytes_per_token != row.bytes_per_token_long; });
  const bool states = std::any_of(report.plan.rows.begin(), report.plan.rows.end(),
                                  [](const PlanRow& row) { return row.bytes.state > 0; });
  const bool sharded = report.request.sharding.devices() > 1;
  std::vector<Table::Column> columns = {{"format", true}, {"tokens"}, {"sealed K/V"}, {"effective"},
                                        {"B/token"},      {"cache"},  {"bf16 ideal"}};
  if (states) columns.push_back({"state"});
  if (sharded) columns.push_back({"a device"});
  if (report.request.memory)
    for (const char* title : {"memory", "sequences", "longest"}) columns.push_back({title});
  Table table(columns);
  for (const PlanRow& row : report.plan.rows) {
    std::vector<Cell> cells = {
        {row.format, Color::kBold},
        {fmt::format("{}", row.tokens)},
        {sealed_text(row)},
        {fmt::format("{:.2f}", row.effective_bits)},
        {windows ? fmt::format("{}, {}", row.bytes_per_token, row.bytes_per_token_long)
                 : fmt::format("{}", row.bytes_per_token)},
        {bytes_text(report, row.bytes.kv())},
        {bytes_text(report, row.bytes.ideal)}};
    if (states) cells.push_back({bytes_text(report, row.bytes.state)});
    if (sharded) cells.push_back({bytes_text(report, row.device_bytes)});
    if (report.request.memory) {
      cells.push_back(fits_cell(report, row));
      cells.push_back({fmt::format("{}", row.max_sequences)});
      cells.push_back({context_text(row)});
    }
    table.add_row(std::move(cells));
  }
  std::string out = table.render(colored);
  std::string legend = "sealed and effective bits are per element of K and V";
  if (windows) legend += "; B/token: before any window is full, and after all are";
  if (report.request.memory)
    legend += fmt::format(
        "; longest: what {} can grow to",
        counted(report.plan.rows.empty() ? 1 : report.plan.rows[0].sequences, "sequence"));
  return out + paint(legend + "\n", Color::kDim, colored);
}

std::string workload_table(const PlanReport& report, bool colored) {
  const bool memory = report.request.memory.has_value();
  std::vector<Table::Column> columns = {{"format", true}, {"average"}, {"P95"}};
  if (memory) {
    columns = {{"format", true}, {"average"},   {"memory"},  {"sequences"}, {"P95"},
               {"memory"},       {"sequences"}, {"longest"}, {"gain"},      {"exact"}};
  }
  Table table(columns);
  for (const WorkloadRow& row : report.plan.workload) {
    std::vector<Cell> cells = {{row.average.format, Color::kBold}};
    for (const PlanRow* at : {&row.average, &row.p95}) {
      cells.push_back({bytes_text(report, at->bytes.kv() + at->bytes.state)});
      if (!memory) continue;
      cells.push_back(fits_cell(report, *at));
      cells.push_back({fmt::format("{}", at->max_sequences)});
    }
    if (memory) {
      cells.push_back({context_text(row.p95)});
      cells.push_back({fmt::format("{:.2f}", row.expected_gain)});
      cells.push_back({row.exact_gain ? fmt::format("{:.2f}", *row.exact_gain) : "-"});
    }
    table.add_row(std::move(cells));
  }
  const Workload& load = *report.request.workload;
  std::string out = fmt::format(
      "\n{} at once, of {} tokens on average ({} + {}) and {} at the 95th percentile ({} + {})\n",
      counted(load.concurrency, "request"), load.prompt.average + load.output.average,
      load.prompt.average, load.output.average, load.prompt.p95 + load.output.p95, load.prompt.p95,
      load.output.p95);
  out += table.render(colored);
  if (memory) {
    out += paint(
        "gain: capacity over bf16 as 1 / (1 - share + share / compression), share being "
        "the cache's of weights and bf16 cache; exact: sequences that fit, over bf16's; "
        "longest: what so many sequences can grow to\n",
        Color::kDim, colored);
  }
  return out;
}

// "16 sequences of up to 4608 tokens fit".
std::string what_fits(const PlanRow& row) {
  if (row.max_context == 0) return "not even one token fits";
  return fmt::format("{} of up to {} tokens {}", counted(row.sequences, "sequence"),
                     row.max_context, row.sequences == 1 ? "fits" : "fit");
}

// "bf16, int8, k8v4": the order in which formats were tried; of many those up to the first that
// fits.
std::string tried_text(const Plan& plan) {
  constexpr size_t kListed = 8;
  std::string out;
  for (size_t i = 0; i < plan.tried.size(); ++i) {
    if (i >= kListed) return out + ", …";
    out += fmt::format("{}{}", i == 0 ? "" : ", ", plan.tried[i]);
  }
  return out;
}

// Does it fit, by how much, and what would.
std::string workload_sentence(const PlanReport& report) {
  const auto row_of = [&](const std::string& format) {
    return std::find_if(report.plan.workload.begin(), report.plan.workload.end(),
                        [&](const WorkloadRow& row) { return row.p95.format == format; });
  };
  const Workload& load = *report.request.workload;
  if (!report.plan.first_fit.empty()) {
    const PlanRow& row = row_of(report.plan.first_fit)->p95;
    return fmt::format(
        "{} is the first format in order of quality that fits the 95th percentile: {} of {} "
        "tokens, {}. At most {} of that length, or {}. "
        "Tried in this order: {}.\n",
        row.format, counted(load.concurrency, "request"), row.tokens, fits_text(report, row),
        counted(row.max_sequences, "sequence"), what_fits(row), tried_text(report.plan));
  }
  if (report.plan.workload.empty()) return "";
  const auto best = std::max_element(report.plan.workload.begin(), report.plan.workload.end(),
                                     [](const WorkloadRow& a, const WorkloadRow& b) {
                                       return a.p95.spare_bytes < b.p95.spare_bytes;
                                     });
  const PlanRow& row = best->p95;
  return fmt::format(
      "None of these formats fits the 95th percentile: {} of {} tokens are {} even in {}. With it "
      "at most {} of that length, or {}; a smaller --concurrency, --tp, --pp or more "
      "--device-memory help.\n",
      counted(load.concurrency, "request"), row.tokens, fits_text(report, row), row.format,
      counted(row.max_sequences, "sequence"), what_fits(row));
}

// One sentence for the first row that doesn't fit: what is needed, what there is, what would fit.
std::string misfit_sentence(const PlanReport& report) {
  for (const PlanRow& row : report.plan.rows) {
    if (row.fits.value_or(true)) continue;
    return fmt::format(
        "{}: {} of {} need{} {} on a device that has {} of {} left, {}; {} (--tokens, --batch, "
        "--kv with fewer bits, --tp, --pp or --device-memory change that)\n",
        row.format, counted(row.sequences, "sequence"), counted(row.tokens, "token"),
        row.sequences == 1 ? "s" : "", bytes_text(report, row.device_needed),
        bytes_text(report, row.available_bytes), bytes_text(report, report.request.memory->total),
        fits_text(report, row), what_fits(row));
  }
  return "";
}

std::string title(const PlanReport& report) {
  const ModelShape& shape = report.shape;
  std::string out = fmt::format("{}: {}, {}", shape.source, shape.architecture,
                                counted(static_cast<int64_t>(shape.layers.size()), "layer"));
  std::vector<std::pair<std::string, int>> kinds;
  for (const ModelLayer& layer : shape.layers) {
    const std::string kind = layer_kind(layer);
    const auto at = std::find_if(kinds.begin(), kinds.end(),
                                 [&](const auto& known) { return known.first == kind; });
    if (at == kinds.end()) {
      kinds.emplace_back(kind, 1);
    } else {
      ++at->second;
    }
  }
  for (size_t i = 0; i < kinds.size(); ++i)
    out += fmt::format("{}{} {}", i == 0 ? " (" : ", ", kinds[i].second, kinds[i].first);
  if (!kinds.empty()) out += ")";
  if (shape.max_positions > 0) out += fmt::format(", up to {} tokens", shape.max_positions);
  out += "\n";
  if (report.request.memory) {
    out += fmt::format("weights {}, device {}\n", bytes_text(report, report.request.weight_bytes),
                       bytes_text(report, report.request.memory->total));
  }
  return out;
}

}  // namespace

std::string plan_text(const PlanReport& report, bool colored) {
  std::string out = title(report) + rows_table(report, colored);
  if (report.request.memory) out += misfit_sentence(report);
  if (report.request.workload) {
    out += workload_table(report, colored);
    if (report.request.memory) out += workload_sentence(report);
  }
  return out + plan_notes_text(report);
}

std::string plan_notes_text(const PlanReport& report) {
  std::string out;
  for (const std::string& note : report.plan.notes) out += fmt::format("note: {}\n", note);
  return out;
}

std::string plan_layers_text(const PlanReport& report) {
  Table table(
      {{"layer", true}, {"kind"}, {"KV heads"}, {"K"}, {"V"}, {"window"}, {"B/token"}, {"state"}});
  for (size_t l = 0; l < report.shape.layers.size(); ++l) {
    const ModelLayer& layer = report.shape.layers[l];
    std::string label = fmt::format("{}", l);
    if (layer.shares >= 0) label += fmt::format(" reads {}", layer.shares);
    const double bytes = layer_bytes_per_token(report, static_cast<int>(l));
    const std::string state = layer.state.is_empty() ? "-" : bytes_text(report, state_bytes(layer));
    if (layer.streams.empty() || layer.shares >= 0) {
      table.add_row({{label}, {layer_kind(layer)}, {"-"}, {"-"}, {"-"}, {"-"}, {"-"}, {state}});
      continue;
    }
    for (size_t s = 0; s < layer.streams.size(); ++s) {
      const CacheStream& stream = layer.streams[s];
      table.add_row({{s == 0 ? label : ""},
                     {std::string(stream_kind_name(stream.kind))},
                     {fmt::format("{}", stream.heads)},
                     {fmt::format("{}", stream.k_dim)},
                     {stream.v_dim > 0 ? fmt::format("{}", stream.v_dim) : "-"},
                     {stream.window > 0 ? fmt::format("{}", stream.window) : "-"},
                     {s == 0 ? fmt::format("{}", bytes) : ""},
                     {s == 0 ? state : ""}});
    }
  }
  return fmt::format("\nlayers, bytes in {}\n", report.plan.rows.front().format) +
         table.render(false);
}

Json plan_json(const PlanReport& report) {
  Json json = {{"model", report.shape.source},
               {"architecture", report.shape.architecture},
               {"max_positions", report.shape.max_positions},
               {"parameters", report.shape.num_parameters},
               {"weight_bytes", report.request.weight_bytes},
               {"layers_format", report.plan.rows.front().format},
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
  std::string out;
  const auto add = [&](Json json) {
    std::vector<std::string> names, fields;
    for (const auto& [key, value] : json.items()) {
      names.push_back(key);
      fields.push_back(value.is_null()     ? ""
                       : value.is_string() ? value.get<std::string>()
                                           : value.dump());
    }
    if (out.empty()) out += csv_line(names);
    out += csv_line(fields);
  };
  const auto with_gain = [&](const PlanRow& row, const char* which, const WorkloadRow* load) {
    Json json = row_json(row, report.request);
    json["row"] = which;
    json["cache_share"] = load == nullptr ? Json() : Json(load->share);
    json["compression"] = load == nullptr ? Json() : Json(load->compression);
    json["expected_gain"] = load == nullptr ? Json() : Json(load->expected_gain);
    json["exact_gain"] = load == nullptr ? Json() : optional_json(load->exact_gain);
    return json;
  };
  for (const PlanRow& row : report.plan.rows) add(with_gain(row, "tokens", nullptr));
  for (const WorkloadRow& load : report.plan.workload) {
    add(with_gain(load.average, "average", &load));
    add(with_gain(load.p95, "p95", &load));
  }
  return out;
}

std::string plan_lesson() {
  return "kvant plan MODEL tells what a model's KV cache takes, before anything runs. MODEL is a\n"
         "config.json, a Hugging Face directory, a GGUF file, or - for a config.json on the "
         "standard\n"
         "input. No weights are read.\n"
         "\n"
         "  kvant plan config.json\n"
         "  kvant plan config.json --tokens 8k,128k --kv bf16,int8,int4 --explain\n"
         "  kvant plan ./Llama-3.1-8B --device-memory 24G --prompt 2k:8k --output 300:1k "
         "--concurrency 16\n"
         "\n"
         "The classical formula is the simplest case: every layer sees all tokens, and nothing is\n"
         "stored but the numbers themselves:\n"
         "\n"
         "  bytes = 2 (K and V) x layers x sequences x tokens x KV heads x head size x bytes a "
         "value\n"
         "\n"
         "What is added to it here: layers that see a window only, latents, shared caches and "
         "constant\n"
         "states are counted as what they are; a format's scales and zero points are counted; and\n"
         "memory comes in pages of 64 tokens. A page is sealed, encoded into the format's bits, "
         "once "
         "all\n"
         "its tokens are there; the first page and the open one stay exact. So two figures stand "
         "beside\n"
         "a format's name:\n"
         "\n"
         "  sealed bits      codes and scales of a full page, per element of K and V\n"
         "  effective bits   all bytes held at a length, exact pages and padding too, per element\n"
         "\n"
         "kvant plan --help lists the options.\n";
}

}  // namespace kvant::cli
