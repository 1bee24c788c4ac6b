// A plan for people: what model, what device, the answer, the tables, the notes.
#include <fmt/format.h>

#include <algorithm>

#include "cli/plan_layers.h"
#include "cli/plan_report.h"
#include "cli/terminal.h"
#include "cli/wrap.h"

namespace kvant::cli {
namespace {

std::string wrapped(const std::string& text, size_t indent = 0) {
  std::string out;
  append_wrapped(out, text, indent);
  return out;
}

// "24 GiB (25.8 GB)": a size that was given in binary units is said in them, too.
std::string device_text(const PlanReport& report, uint64_t bytes) {
  const std::string decimal = bytes_text(report, bytes);
  if (report.exact_bytes || bytes % (1 << 20) != 0) return decimal;
  const bool large = bytes >= uint64_t{1} << 30;
  return fmt::format("{:.6g} {} ({})", static_cast<double>(bytes) / (large ? 0x1p30 : 0x1p20),
                     large ? "GiB" : "MiB", decimal);
}

constexpr int64_t kLongest = int64_t{1} << 40;  // that the planner counts

std::string fits_text(const PlanReport& report, const PlanRow& row) {
  const auto size = static_cast<uint64_t>(row.spare_bytes < 0 ? -row.spare_bytes : row.spare_bytes);
  return fmt::format("{} {}", bytes_text(report, size), *row.fits ? "free" : "short");
}

Cell fits_cell(const PlanReport& report, const PlanRow& row) {
  return {fits_text(report, row), *row.fits ? Color::kGreen : Color::kRed};
}

std::string context_text(const PlanRow& row) {
  if (row.max_context >= kLongest) return "any length";
  return fmt::format("{}{}", row.max_context, row.context_is_models ? " (model)" : "");
}

bool holds_tokens(const PlanRow& row) { return row.bytes.ideal > 0; }

// "8.50/4.12"; nothing is said of what isn't stored.
std::string sealed_text(const PlanRow& row) {
  const auto side = [&](double bits) {
    return bits > 0 && holds_tokens(row) ? fmt::format("{:.2f}", bits) : "-";
  };
  return fmt::format("{}/{}", side(row.sealed_bits.key), side(row.sealed_bits.value));
}

// --- Above the tables ---

std::string dims_text(const CacheStream& stream) {
  if (stream.v_dim == 0 || stream.k_dim == stream.v_dim) return fmt::format("{}", stream.k_dim);
  return fmt::format("K {} and V {}", stream.k_dim, stream.v_dim);
}

std::string heads_text(const CacheStream& stream) {
  if (stream.kind == StreamKind::kLatent) return fmt::format("latents of {}", stream.k_dim);
  return fmt::format("{} of {}", counted(stream.heads, "KV head"), dims_text(stream));
}

// "8 KV heads of 128 (declared)" where all layers are alike, else what each kind has.
std::string all_heads_text(const ModelShape& shape) {
  std::vector<std::string> alike, by_kind;
  const auto add = [](const std::string& text, std::vector<std::string>& to) {
    if (std::find(to.begin(), to.end(), text) == to.end()) to.push_back(text);
  };
  for (const ModelLayer& layer : shape.layers) {
    if (layer.shares >= 0) continue;
    for (const CacheStream& stream : layer.streams) {
      add(heads_text(stream), alike);
      add(fmt::format("{} {} × {}", stream_kind_name(stream.kind), stream.heads, dims_text(stream)),
          by_kind);
    }
  }
  if (alike.empty()) return "";
  if (alike.size() > 1) return fmt::format(", {}", fmt::join(by_kind, ", "));
  const bool latent = alike.front().starts_with("latents");
  return ", " + alike.front() +
         (latent || shape.head_dim_from.empty() ? "" : fmt::format(" ({})", shape.head_dim_from));
}

std::string layers_text(const ModelShape& shape) {
  std::vector<std::pair<std::string, int>> kinds;
  for (const ModelLayer& layer : shape.layers) {
    const std::string kind = layer_parts(layer);
    const auto at = std::find_if(kinds.begin(), kinds.end(),
                                 [&](const auto& known) { return known.first == kind; });
    if (at == kinds.end()) {
      kinds.emplace_back(kind, 1);
    } else {
      ++at->second;
    }
  }
  std::string out = counted(static_cast<int64_t>(shape.layers.size()), "layer");
  for (size_t i = 0; i < kinds.size(); ++i)
    out += fmt::format("{}{} {}", i == 0 ? " (" : ", ", kinds[i].second, kinds[i].first);
  return kinds.empty() ? out : out + ")";
}

// What multiplies the rows, where it isn't 1 or 0.
std::string sequences_text(const PlanRequest& request) {
  std::vector<std::string> parts;
  if (request.batch > 1 && !request.tokens.empty())
    parts.push_back(fmt::format("batch {}", request.batch));
  if (request.beams > 1) parts.push_back(fmt::format("{} beams each", request.beams));
  if (request.shared_prefix > 0)
    parts.push_back(fmt::format("a shared prefix of {}", counted(request.shared_prefix, "token")));
  if (request.source_tokens > 0)
    parts.push_back(fmt::format("a source of {}", counted(request.source_tokens, "token")));
  return parts.empty() ? "" : fmt::format("{}\n", fmt::join(parts, ", "));
}

const PlanRow& any_row(const PlanReport& report) {
  return report.plan.rows.empty() ? report.plan.workload.front().average : report.plan.rows.front();
}

std::string memory_text(const PlanReport& report) {
  const PlanRequest& request = report.request;
  const DeviceMemory& memory = *request.memory;
  const PlanRow& row = any_row(report);
  const std::string& how = request.weight_calculation;
  std::string out = fmt::format("device {}: weights {} ({})", device_text(report, memory.total),
                                bytes_text(report, request.weight_bytes),
                                how.empty() ? "of the files" : "estimated, " + how);
  if (row.device_weights != request.weight_bytes)
    out += fmt::format(", of which {} here", bytes_text(report, row.device_weights));
  if (memory.workspace > 0)
    out += fmt::format(", workspace {}", bytes_text(report, memory.workspace));
  if (memory.activation > 0)
    out += fmt::format(", activations {}", bytes_text(report, memory.activation));
  return out + fmt::format("; {} left for the cache", bytes_text(report, row.available_bytes));
}

std::string title(const PlanReport& report) {
  const ModelShape& shape = report.shape;
  std::string line = fmt::format("{}: {}, {}{}", shape.source, shape.architecture,
                                 layers_text(shape), all_heads_text(shape));
  if (shape.max_positions > 0) line += fmt::format(", up to {} tokens", shape.max_positions);
  std::string out = wrapped(line);
  if (report.request.memory) out += wrapped(memory_text(report));
  return out + sequences_text(report.request);
}

// --- Tables ---

std::string rows_table(const PlanReport& report, bool colored) {
  const std::vector<PlanRow>& rows = report.plan.rows;
  const bool memory = report.request.memory.has_value();
  const bool windows = std::any_of(rows.begin(), rows.end(), [](const PlanRow& row) {
    return row.bytes_per_token != row.bytes_per_token_long;
  });
  const bool states =
      std::any_of(rows.begin(), rows.end(), [](const PlanRow& row) { return row.bytes.state > 0; });
  const bool sharded = report.request.sharding.devices() > 1;
  std::vector<Table::Column> columns = {{"format", true}, {"tokens"},  {"sealed K/V"},
                                        {"effective"},    {"B/token"}, {"cache"}};
  if (!memory) columns.push_back({"bf16 ideal"});
  if (states) columns.push_back({"state"});
  if (sharded) columns.push_back({"a device"});
  if (memory)
    for (const char* name : {"needs", "memory", "sequences", "longest"}) columns.push_back({name});
  Table table(columns);
  for (const PlanRow& row : rows) {
    std::vector<Cell> cells = {
        {row.format, Color::kBold},
        {fmt::format("{}", row.tokens)},
        {sealed_text(row)},
        {holds_tokens(row) ? fmt::format("{:.2f}", row.effective_bits) : "-"},
        {windows ? fmt::format("{}, {}", row.bytes_per_token, row.bytes_per_token_long)
                 : fmt::format("{}", row.bytes_per_token)},
        {bytes_text(report, row.bytes.kv())}};
    if (!memory) cells.push_back({bytes_text(report, row.bytes.ideal)});
    if (states) cells.push_back({bytes_text(report, row.bytes.state)});
    if (sharded) cells.push_back({bytes_text(report, row.device_bytes)});
    if (memory) {
      cells.push_back({bytes_text(report, row.device_needed)});
      cells.push_back(fits_cell(report, row));
      cells.push_back({fmt::format("{}", row.max_sequences)});
      cells.push_back({context_text(row)});
    }
    table.add_row(std::move(cells));
  }
  std::string legend = "sealed and effective bits are per element of K and V";
  if (windows) legend += "; B/token: before any window is full, and after all are";
  if (memory) {
    legend += fmt::format(
        "; needs: the cache at its peak on the way to this length; longest: what {} can grow to",
        counted(rows.front().sequences, "sequence"));
  }
  return table.render(colored) + paint(wrapped(legend), Color::kDim, colored);
}

std::string workload_table(const PlanReport& report, bool colored) {
  const bool memory = report.request.memory.has_value();
  std::vector<Table::Column> columns = {{"format", true}, {"average"}, {"P95"}};
  if (memory) {
    columns = {{"format", true}, {"average needs"}, {"memory"},  {"sequences"}, {"P95 needs"},
               {"memory"},       {"sequences"},     {"longest"}, {"gain"},      {"exact"}};
  }
  Table table(columns);
  for (const WorkloadRow& row : report.plan.workload) {
    std::vector<Cell> cells = {{row.average.format, Color::kBold}};
    for (const PlanRow* at : {&row.average, &row.p95}) {
      cells.push_back(
          {bytes_text(report, memory ? at->device_needed : at->bytes.kv() + at->bytes.state)});
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
  std::string out = wrapped(fmt::format(
      "{} at once, of {} tokens on average ({} + {}) and {} at the 95th percentile ({} + {})",
      counted(load.concurrency, "request"), load.total().average, load.prompt.average,
      load.output.average, load.total().p95, load.prompt.p95, load.output.p95));
  out += table.render(colored);
  if (!memory) return out;
  const std::string legend = wrapped(
      "needs: the cache at its peak; longest: what so many sequences can grow to; gain: expected "
      "capacity over bf16, 1 / (1 - share + share / compression), share being the cache's of "
      "weights and bf16 cache; exact: sequences of the average request that fit, over bf16's");
  return out + paint(legend, Color::kDim, colored);
}

// --- Sentences ---

// "16 sequences of up to 4608 tokens fit".
std::string what_fits(const PlanRow& row) {
  if (row.max_context == 0) return "not even one token fits";
  return fmt::format("{} of up to {} tokens {}", counted(row.sequences, "sequence"),
                     row.max_context, row.sequences == 1 ? "fits" : "fit");
}

// "bf16, int8, k8v4": the order in which formats were tried, the first of many.
std::string tried_text(const Plan& plan) {
  constexpr size_t kListed = 8;
  std::string out;
  for (size_t i = 0; i < plan.tried.size(); ++i) {
    if (i >= kListed) return out + ", …";
    out += fmt::format("{}{}", i == 0 ? "" : ", ", plan.tried[i]);
  }
  return out;
}

// A model without K and V, whose formats are all one.
std::string state_sentence(const PlanReport& report, const PlanRow& row) {
  return fmt::format(
      "The cache is constant state alone, the same in every format: {} of any length need{} {}, "
      "{}. At most {}.",
      counted(row.sequences, "sequence"), row.sequences == 1 ? "s" : "",
      bytes_text(report, row.device_needed), fits_text(report, row),
      counted(row.max_sequences, "sequence"));
}

// Does it fit, by how much, and what would.
std::string workload_sentence(const PlanReport& report) {
  const std::vector<WorkloadRow>& rows = report.plan.workload;
  const std::string& first = report.plan.first_fit;
  const Workload& load = *report.request.workload;
  if (rows.empty()) return "";
  if (!holds_tokens(rows.front().p95)) return state_sentence(report, rows.front().p95);
  const auto fit = std::find_if(rows.begin(), rows.end(),
                                [&](const WorkloadRow& row) { return row.p95.format == first; });
  if (fit != rows.end()) {
    const PlanRow& row = fit->p95;
    return fmt::format(
        "{} is the first format in order of quality that fits the 95th percentile: {} of {} "
        "tokens, {}. At most {} of that length, or {}. Tried in this order: {}.",
        row.format, counted(load.concurrency, "request"), row.tokens, fits_text(report, row),
        counted(row.max_sequences, "sequence"), what_fits(row), tried_text(report.plan));
  }
  const auto best =
      std::max_element(rows.begin(), rows.end(), [](const WorkloadRow& a, const WorkloadRow& b) {
        return a.p95.spare_bytes < b.p95.spare_bytes;
      });
  const PlanRow& row = best->p95;
  return fmt::format(
      "None of these formats fits the 95th percentile: {} of {} tokens are {} even in {}. With it "
      "at most {} of that length, or {}; a smaller --concurrency, --tp, --pp or more "
      "--device-memory help.",
      counted(load.concurrency, "request"), row.tokens, fits_text(report, row), row.format,
      counted(row.max_sequences, "sequence"), what_fits(row));
}

// One sentence for the first row that doesn't fit: what is needed, what there is, what would fit.
std::string misfit_sentence(const PlanReport& report) {
  for (const PlanRow& row : report.plan.rows) {
    if (row.fits.value_or(true)) continue;
    return wrapped(fmt::format(
        "{}: {} of {} need{} {} on a device that has {} of {} left, {}; {} (--tokens, --batch, "
        "--kv with fewer bits, --tp, --pp or --device-memory change that)",
        row.format, counted(row.sequences, "sequence"), counted(row.tokens, "token"),
        row.sequences == 1 ? "s" : "", bytes_text(report, row.device_needed),
        bytes_text(report, row.available_bytes), device_text(report, report.request.memory->total),
        fits_text(report, row), what_fits(row)));
  }
  return "";
}

}  // namespace

std::string bytes_text(const PlanReport& report, uint64_t bytes) {
  return report.exact_bytes ? fmt::format("{}", bytes) : human_bytes(static_cast<double>(bytes));
}

std::string plan_text(const PlanReport& report, bool colored) {
  std::string out = title(report);
  if (report.request.workload) {
    if (report.request.memory) out += "\n" + wrapped(workload_sentence(report)) + "\n";
    out += workload_table(report, colored);
    if (!report.plan.rows.empty()) out += "\n";
  }
  if (!report.plan.rows.empty()) {
    out += rows_table(report, colored);
    if (report.request.memory) out += misfit_sentence(report);
  }
  return out + plan_notes_text(report);
}

std::string plan_notes_text(const PlanReport& report) {
  std::string out;
  for (const std::string& note : report.plan.notes) {
    out += "note: ";
    append_wrapped(out, note, 6);
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
