#include "cli/open_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "cli/calibration_use.h"
#include "cli/memory.h"
#include "cli/scale_report.h"
#include "cli/terminal.h"
#include "formats/codec.h"
#include "formats/names.h"
#include "simd/cpu.h"

namespace kvant::cli {
namespace {

// A name that no model could use is refused before a file is opened. Presets mean other formats on
// other models, so both kinds are tried.
Status check_format_name(const std::string& name, const std::vector<std::string>& calibrated) {
  for (bool qk_norm : {false, true}) {
    const Result<FormatPair> pair =
        parse_format_pair(name, ModelTraits{.qk_norm = qk_norm, .calibrated = calibrated});
    if (!pair.ok()) return pair.status().with_context(fmt::format("--kv {}", name));
    for (const std::string& side : {pair->key, pair->value}) {
      KVANT_ASSIGN(const FormatInfo* format, find_format(side));
      if (format->needs.artifacts &&
          std::find(calibrated.begin(), calibrated.end(), side) == calibrated.end()) {
        return unsupported(fmt::format(
            "--kv {}: {} needs to be calibrated; kvant calibrate writes what --calibration takes",
            name, format->name));
      }
    }
  }
  return {};
}

// Layers for which a preset that means another format where it is calibrated doesn't.
void note_uncovered(const std::string& kv, const ResolvedFormats& formats,
                    std::span<const LayerShape> shapes, const Sidecar& calibration,
                    std::vector<std::string>& notes) {
  if (!calibration.is_calibration()) return;
  ModelTraits calibrated;
  for (const FormatInfo& info : all_formats()) {
    if (info.needs.artifacts) calibrated.calibrated.push_back(info.name);
  }
  const Result<FormatPair> wanted = parse_format_pair(kv, calibrated);
  const Result<FormatPair> plain = parse_format_pair(kv, {});
  if (!wanted.ok() || !plain.ok() || *wanted == *plain) return;
  std::vector<int> layers;
  for (size_t l = 0; l < shapes.size(); ++l) {
    if (shapes[l].num_kv_heads > 0 && shapes[l].quantizable &&
        formats.effective[l].key != wanted->key)
      layers.push_back(static_cast<int>(l));
  }
  if (layers.empty()) return;
  notes.push_back(
      fmt::format("layers {} have no {} in {}: {} means there what it means without a calibration",
                  index_ranges(layers), wanted->key, calibration.path().string(), kv));
}

// A format that needs a given scale was named by hand, if beside a preset: it doesn't fall back.
Status check_given(const ResolvedFormats& formats, std::span<const LayerShape> shapes) {
  for (const FormatFallback& fallback : formats.fallbacks) {
    KVANT_ASSIGN(const FormatInfo* format, find_format(fallback.format));
    const LayerShape& first = shapes[static_cast<size_t>(fallback.layers.front())];
    if (format->scale_source == ScaleSource::kGiven && first.quantizable && first.value_dim > 0)
      return unsupported(
          fmt::format("layers {}: {}", index_ranges(fallback.layers), fallback.reason));
  }
  return {};
}

// `overridden`: --kv-layers applies.
Result<CachePlanChoice> choose_cache(const Settings& settings, const std::string& kv,
                                     const ModelInfo& info, const Sidecar* calibration,
                                     bool overridden) {
  CachePlanChoice choice;
  choice.name = kv;
  const std::string layers = overridden ? settings.kv_layers : "";
  std::vector<LayerShape> shapes = info.layer_shapes;
  for (size_t l = 0; l < shapes.size(); ++l)
    shapes[l].calibrated = calibrated_formats(l, info, calibration);
  const auto resolve = [&](const std::string& base) {
    return resolve_formats(base, layers, shapes, info.traits, settings.strict);
  };
  // On top of bf16, which every layer can have, what goes wrong comes from --kv-layers alone.
  if (const Status status = resolve("bf16").status(); !status.ok())
    return status.with_context(fmt::format("--kv-layers {}", printable(layers)));
  Result<ResolvedFormats> formats = resolve(kv);
  if (!formats.ok()) return formats.status().with_context(fmt::format("--kv {}", kv));
  KVANT_TRY(check_given(*formats, info.layer_shapes).with_context(fmt::format("--kv {}", kv)));
  choice.formats = *std::move(formats);
  if (calibration != nullptr)
    note_uncovered(kv, choice.formats, shapes, *calibration, choice.formats.notes);
  choice.options.layers = info.cache_layers;
  for (size_t l = 0; l < choice.options.layers.size(); ++l) {
    CacheLayer& layer = choice.options.layers[l];
    layer.formats = choice.formats.effective[l];
    give_scales(l, info, calibration, layer);
    if (calibration == nullptr) continue;
    layer.key_artifacts = calibration->artifacts(static_cast<int>(l), layer.formats.key,
                                                 layer.num_kv_heads, layer.key_dim);
  }
  choice.scales = scale_sources(choice.options, info.cache_scales, calibration);
  choice.options.sinks = static_cast<int>(settings.sinks);
  choice.options.exact_window = static_cast<int>(settings.exact_window);
  choice.options.rotation_seed = static_cast<uint64_t>(settings.rotation_seed);
  choice.options.decode_pages = settings.decode_pages;
  return choice;
}

// What caches of these choices take, each holding `tokens`.
Status add_caches(std::span<const CachePlanChoice> caches, int64_t tokens, MemoryBudget& memory) {
  if (caches.empty()) return {};
  double bytes = 0;
  for (const CachePlanChoice& choice : caches) {
    KVANT_ASSIGN(const CachePlan plan, plan_cache(choice.options, {&tokens, 1}));
    bytes += static_cast<double>(plan.total_bytes());
  }
  std::string names = caches.front().name;
  if (caches.size() > 1) names += fmt::format(" and {} more", caches.size() - 1);
  memory.add(fmt::format("{} cached in {}", counted(tokens, "token"), names), bytes,
             "a smaller --context or fewer bits in --kv take less");
  return {};
}

// The model's shape is known and nothing of it is loaded: the last moment to refuse for free.
Status accept(const Invocation& in, const RunPlan& plan, const ModelInfo& info,
              const Sidecar* calibration, std::vector<CachePlanChoice>& caches) {
  const Settings& s = in.settings;
  for (const char* flag : {"context", "max-model-len"}) {
    if (!s.is_given(flag) || s.context <= info.max_positions) continue;
    return invalid_argument(fmt::format("--{} {}: {} takes at most {}", flag, s.context, in.model,
                                        counted(info.max_positions, "token")));
  }
  if (s.strict && !info.notes.empty()) {
    return unsupported(fmt::format("--weights {}: {}", s.weights, info.notes[0]));
  }
  if (s.strict && !info.cache_scales.notes.empty() && !plan.formats.empty())
    return unsupported(info.cache_scales.notes[0]);
  for (const std::string& name : plan.formats) {
    // Among several, bf16 is what the others are measured against.
    const bool overridden = plan.formats.size() == 1 || name != kBaselineFormat;
    KVANT_ASSIGN(CachePlanChoice choice, choose_cache(s, name, info, calibration, overridden));
    caches.push_back(std::move(choice));
  }
  in.memory->add(fmt::format("weights as {}", s.weights),
                 static_cast<double>(info.conversion_bytes), "--weights native takes less");
  const auto runs = static_cast<double>(plan.formats.size() + (plan.baseline ? 1 : 0));
  const int64_t tokens = std::min(plan.tokens, info.max_positions);
  // Hidden states of every run, and the three rows that a forward pass holds beside them.
  const int64_t rows = tokens > 0 ? std::min(s.chunk, tokens) : s.chunk;
  in.memory->add(fmt::format("{} tokens at once", rows),
                 (runs + 3) * static_cast<double>(rows * info.hidden_size) * sizeof(float),
                 "a smaller --chunk takes less");
  std::vector<CachePlanChoice> all = caches;
  if (plan.baseline) {
    CachePlanChoice& exact = all.emplace_back(caches.front());
    for (CacheLayer& layer : exact.options.layers) layer.formats = {"bf16", "bf16"};
  }
  KVANT_TRY(add_caches(all, tokens, *in.memory));
  return in.memory->check(available_memory());
}

std::string weight_summary(const ModelInfo& info) {
  std::string out;
  for (const auto& [type, count] : info.weight_types)
    out += fmt::format("{}{}×{}", out.empty() ? "" : " ", type, count);
  return out;
}

// The code that reads one side of a layer, "-" where it has none.
std::string layer_kernel(const CacheLayer& layer, Side side) {
  if (layer.num_kv_heads == 0) return "-";
  if (side == Side::kKey) return kernel_of(layer.formats.key, side, layer.key_dim);
  const bool own = layer.value_source == ValueSource::kOwnStream;
  return own ? kernel_of(layer.formats.value, side, layer.value_dim) : "-";
}

void announce_layers(const CachePlanChoice& choice) {
  for (size_t l = 0; l < choice.formats.effective.size(); ++l) {
    const CacheLayer& layer = choice.options.layers[l];
    note("  layer {:<3} asked {:<36} effective {:<36} kernels {} {}\n", l,
         choice.formats.requested[l].name(), choice.formats.effective[l].name(),
         layer_kernel(layer, Side::kKey), layer_kernel(layer, Side::kValue));
  }
}

// Layers mostly differ for one and the same reason: one sentence stands for all, unless all are
// asked for.
void announce_notes(const std::vector<std::string>& notes, bool all) {
  constexpr size_t kShown = 2;
  const size_t shown = all || notes.size() <= kShown + 1 ? notes.size() : kShown;
  for (size_t i = 0; i < shown; ++i) note("note     {}\n", notes[i]);
  if (shown < notes.size()) {
    note("note     and {} more like these (-v lists them)\n", notes.size() - shown);
  }
}

}  // namespace

Status check_model_path(const std::string& path, const std::string& needed) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return not_found(
        fmt::format("{} doesn't exist; wanted a GGUF file or a Hugging Face directory", path));
  }
  if (!std::filesystem::is_directory(path, error) ||
      std::filesystem::exists(std::filesystem::path(path) / needed, error))
    return {};
  return not_found(
      fmt::format("{} is a directory, but not a model's: it has no {}; wanted a Hugging Face "
                  "directory, with config.json, tokenizer.json and *.safetensors, or a GGUF file",
                  path, needed));
}

int num_threads(const Settings& settings) {
  return settings.threads > 0 ? static_cast<int>(settings.threads) : ThreadPool::available_cpus();
}

double CachePlanChoice::exact_bits() const {
  double widest = 0;
  for (const FormatPair& pair : formats.effective) {
    for (const std::string& name : {pair.key, pair.value}) {
      const Result<const FormatInfo*> format = find_format(name);
      if (!format.ok() || !(*format)->exact) return 0;
      widest = std::max(widest, (*format)->nominal_bits);
    }
  }
  return widest;
}

Status check_cache_memory(const Invocation& in, std::span<const CachePlanChoice> caches,
                          int64_t tokens) {
  MemoryBudget rest;  // what the rest of the run takes is taken already
  KVANT_TRY(add_caches(caches, tokens, rest));
  KVANT_TRY(add_caches(caches, tokens, *in.memory));
  return rest.check(available_memory());
}

Result<OpenModel> open_model(const Invocation& in, const RunPlan& plan) {
  KVANT_TRY(check_settings(in.settings));
  ModelOptions options;
  const Result<WeightType> weights = parse_weight_type(in.settings.weights);
  if (!weights.ok()) return weights.status().with_context("--weights");
  options.weights = *weights;
  options.invariant = in.settings.invariant;
  options.context = in.settings.context;
  KVANT_TRY(check_model_path(in.model, "config.json"));
  OpenModel open;
  if (!plan.formats.empty()) {  // who only looks at a model, or calibrates it, needs none
    KVANT_ASSIGN(open.calibration, open_calibration(in));
  }
  const Sidecar* calibration = open.calibration ? &*open.calibration : nullptr;
  for (const std::string& name : plan.formats)
    KVANT_TRY(check_format_name(
        name, calibration != nullptr ? calibration->all_formats() : std::vector<std::string>()));
  options.accept = [&](const ModelInfo& info) {
    return accept(in, plan, info, calibration, open.caches);
  };
  open.threads = std::make_unique<ThreadPool>(num_threads(in.settings));
  KVANT_ASSIGN(open.model, Model::load(in.model, options, *open.threads));
  return open;
}

std::string kernel_of(const std::string& format, Side side, int dim) {
  const Result<const FormatInfo*> info = find_format(format);
  if (!info.ok()) return "-";
  const Result<std::unique_ptr<Codec>> codec = bind_any(**info, side, dim);
  return codec.ok() ? (*codec)->kernel_name() : "-";
}

FormatPair main_pair(std::span<const FormatPair> layers) {
  std::map<std::string, int> counts;
  const FormatPair* best = &layers.front();
  for (const FormatPair& pair : layers) {
    if (++counts[pair.name()] > counts[best->name()]) best = &pair;
  }
  return *best;
}

std::string describe_formats(std::span<const FormatPair> layers) {
  const FormatPair pair = main_pair(layers);
  const auto others = std::count_if(layers.begin(), layers.end(),
                                    [&](const FormatPair& p) { return !(p == pair); });
  std::string out = fmt::format("K {}, V {}", pair.key, pair.value);
  if (others > 0)
    out += fmt::format(" ({} of {} layers otherwise; -v lists them)", others, layers.size());
  return out;
}

void announce(const Invocation& in, const OpenModel& open) {
  const ModelInfo& info = open.model->info();
  note("model    {} ({}, {}, {} parameters, {} of weights: {})\n",
       info.name.empty() ? in.model : info.name, info.architecture,
       counted(info.num_layers, "layer"), human_count(static_cast<double>(info.num_parameters)),
       human_bytes(static_cast<double>(info.weight_bytes)), weight_summary(info));
  if (info.traits.declared != nullptr) {
    note("declared the checkpoint declares a cache of {}\n", info.traits.declared->name);
  }
  note("compute  {}; attention {}; {}{}\n", info.compute, isa_name(active_isa()),
       counted(open.threads->num_threads(), "thread"), in.settings.invariant ? "; invariant" : "");
  announce_notes(info.notes, true);
  announce_notes(info.cache_scales.notes, true);
  if (open.calibration) {
    note("learned  {}: {}\n", open.calibration->path().string(), learned_text(*open.calibration));
  }
  for (const CachePlanChoice& choice : open.caches) {
    const bool changed = choice.formats.requested != choice.formats.effective;
    note("cache    {}: {}{}\n", choice.name, describe_formats(choice.formats.effective),
         changed ? fmt::format("; asked {}", describe_formats(choice.formats.requested)) : "");
    for (const std::string& said : choice.scales) note("scales   {}\n", said);
    announce_notes(choice.formats.notes, in.settings.verbose);
    if (in.settings.verbose) announce_layers(choice);
  }
  if (!open.caches.empty()) {
    note("kept     first {} tokens exact, {} recent tokens and the open page exact\n",
         in.settings.sinks, in.settings.exact_window);
    if (in.settings.decode_pages) {
      note("products in double from decoded pages (slow: no kernel of a format runs)\n");
    }
  }
}

Json declared_json(const ModelInfo& info) {
  return info.traits.declared == nullptr ? Json() : Json(info.traits.declared->name);
}

Json calibration_json(const OpenModel& open) {
  if (!open.calibration) return {};
  const SidecarFacts& facts = open.calibration->facts();
  return {{"path", open.calibration->path().string()},
          {"model", facts.model},
          {"data", facts.data},
          {"tokens", facts.tokens},
          {"seed", facts.seed},
          {"command", facts.command}};
}

Json run_facts(const Invocation& in, const OpenModel& open) {
  const ModelInfo& info = open.model->info();
  Json weight_types = Json::object();
  for (const auto& [type, count] : info.weight_types) weight_types[type] = count;
  return {{"version", KVANT_VERSION},
          {"model", in.model},
          {"model_name", info.name},
          {"architecture", info.architecture},
          {"weights", in.settings.weights},
          {"weight_types", weight_types},
          {"weight_notes", info.notes},
          {"declared_kv", declared_json(info)},
          {"invariant", in.settings.invariant},
          {"sinks", in.settings.sinks},
          {"exact_window", in.settings.exact_window},
          {"decode_pages", in.settings.decode_pages},
          {"calibration", calibration_json(open)},
          {"threads", open.threads->num_threads()},
          {"isa", isa_name(active_isa())},
          {"compute", info.compute}};
}

Json formats_json(const CachePlanChoice& choice) {
  Json requested = Json::array(), effective = Json::array();
  for (const FormatPair& pair : choice.formats.requested) requested.push_back(pair.name());
  for (const FormatPair& pair : choice.formats.effective) effective.push_back(pair.name());
  Json kernels = Json::array();
  for (const CacheLayer& layer : choice.options.layers) {
    kernels.push_back(
        {{"k", layer_kernel(layer, Side::kKey)}, {"v", layer_kernel(layer, Side::kValue)}});
  }
  return {{"requested", requested},
          {"effective", effective},
          {"kernels", kernels},
          {"scale_sources", choice.scales},
          {"notes", choice.formats.notes}};
}

}  // namespace kvant::cli
