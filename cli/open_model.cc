#include "cli/open_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "cli/prompt.h"
#include "cli/terminal.h"
#include "simd/cpu.h"

namespace kvant::cli {
namespace {

// A name that no model could use is refused before any weight is read. Presets mean other formats
// on other models, so both kinds are tried.
Status check_format_names(const Settings& settings) {
  if (settings.kv.empty()) return {};
  KVANT_ASSIGN(const std::vector<std::string> names, split_formats(settings.kv));
  for (const std::string& name : names) {
    for (bool qk_norm : {false, true}) {
      const Result<FormatPair> pair = parse_format_pair(name, ModelTraits{.qk_norm = qk_norm});
      if (!pair.ok()) return pair.status().with_context(fmt::format("--kv {}", name));
    }
  }
  return {};
}

std::string weight_summary(const ModelInfo& info) {
  std::string out;
  for (const auto& [type, count] : info.weight_types)
    out += fmt::format("{}{}×{}", out.empty() ? "" : " ", type, count);
  return out;
}

void announce_layers(const CachePlanChoice& choice) {
  for (size_t l = 0; l < choice.formats.effective.size(); ++l) {
    fmt::print(stderr, "  layer {:<3} asked {:<36} effective {}\n", l,
               choice.formats.requested[l].name(), choice.formats.effective[l].name());
  }
}

// Layers mostly differ for one and the same reason: one sentence stands for all, unless all are
// asked for.
void announce_notes(const std::vector<std::string>& notes, bool all) {
  constexpr size_t kShown = 2;
  const size_t shown = all || notes.size() <= kShown + 1 ? notes.size() : kShown;
  for (size_t i = 0; i < shown; ++i) fmt::print(stderr, "note     {}\n", notes[i]);
  if (shown < notes.size()) {
    fmt::print(stderr, "note     and {} more like these (-v lists them)\n", notes.size() - shown);
  }
}

}  // namespace

int num_threads(const Settings& settings) {
  return settings.threads > 0 ? static_cast<int>(settings.threads) : ThreadPool::available_cpus();
}

Result<OpenModel> open_model(const Invocation& in) {
  KVANT_TRY(check_settings(in.settings));
  ModelOptions options;
  KVANT_ASSIGN(options.weights, parse_weight_type(in.settings.weights));
  options.invariant = in.settings.invariant;
  options.context = in.settings.context;
  std::error_code error;
  if (!std::filesystem::exists(in.model, error)) {
    return not_found(
        fmt::format("{} doesn't exist; wanted a GGUF file or a Hugging Face directory", in.model));
  }
  KVANT_TRY(check_format_names(in.settings));
  OpenModel open;
  open.threads = std::make_unique<ThreadPool>(num_threads(in.settings));
  KVANT_ASSIGN(open.model, Model::load(in.model, options, *open.threads));
  return open;
}

Result<std::vector<std::string>> split_formats(std::string_view list) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string_view name = list.substr(at, end - at);
    if (name.empty())
      return invalid_argument(
          fmt::format("--kv \"{}\" has an empty item; wanted formats apart by commas", list));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
    at = end + 1;
  }
  return names;
}

Result<CachePlanChoice> choose_cache(const Settings& settings, std::string_view kv,
                                     const ModelInfo& info) {
  CachePlanChoice choice;
  choice.name = kv;
  Result<ResolvedFormats> formats =
      resolve_formats(kv, settings.kv_layers, info.layer_shapes, info.traits, settings.strict);
  if (!formats.ok()) return formats.status();
  choice.formats = std::move(*formats);
  choice.options.layers = info.cache_layers;
  for (size_t l = 0; l < choice.options.layers.size(); ++l) {
    choice.options.layers[l].formats = choice.formats.effective[l];
  }
  choice.options.sinks = static_cast<int>(settings.sinks);
  choice.options.exact_window = static_cast<int>(settings.exact_window);
  choice.options.rotation_seed = static_cast<uint64_t>(settings.rotation_seed);
  return choice;
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

void announce(const Invocation& in, const OpenModel& open,
              std::span<const CachePlanChoice> choices) {
  const ModelInfo& info = open.model->info();
  fmt::print(stderr, "model    {} ({}, {} layers, {} parameters, {} of weights: {})\n",
             info.name.empty() ? in.model : info.name, info.architecture, info.num_layers,
             human_count(static_cast<double>(info.num_parameters)),
             human_bytes(static_cast<double>(info.weight_bytes)), weight_summary(info));
  if (info.traits.declared != nullptr) {
    fmt::print(stderr, "declared the checkpoint declares a cache of {}\n",
               info.traits.declared->name);
  }
  fmt::print(stderr, "compute  {}; attention {}; {} threads{}\n", info.compute,
             isa_name(active_isa()), open.threads->num_threads(),
             in.settings.invariant ? "; invariant" : "");
  for (const CachePlanChoice& choice : choices) {
    const bool changed = choice.formats.requested != choice.formats.effective;
    fmt::print(
        stderr, "cache    {}: {}{}\n", choice.name, describe_formats(choice.formats.effective),
        changed ? fmt::format("; asked {}", describe_formats(choice.formats.requested)) : "");
    announce_notes(choice.formats.notes, in.settings.verbose);
    if (in.settings.verbose) announce_layers(choice);
  }
  if (!choices.empty()) {
    fmt::print(stderr, "kept     first {} tokens exact, {} recent tokens and the open page exact\n",
               in.settings.sinks, in.settings.exact_window);
  }
}

Json declared_json(const ModelInfo& info) {
  return info.traits.declared == nullptr ? Json() : Json(info.traits.declared->name);
}

Json run_facts(const Invocation& in, const OpenModel& open) {
  const ModelInfo& info = open.model->info();
  return {{"model", in.model},
          {"model_name", info.name},
          {"architecture", info.architecture},
          {"weights", in.settings.weights},
          {"declared_kv", declared_json(info)},
          {"invariant", in.settings.invariant},
          {"sinks", in.settings.sinks},
          {"exact_window", in.settings.exact_window},
          {"threads", open.threads->num_threads()},
          {"isa", isa_name(active_isa())},
          {"compute", info.compute}};
}

Json formats_json(const CachePlanChoice& choice) {
  Json requested = Json::array(), effective = Json::array();
  for (const FormatPair& pair : choice.formats.requested) requested.push_back(pair.name());
  for (const FormatPair& pair : choice.formats.effective) effective.push_back(pair.name());
  return {{"requested", requested}, {"effective", effective}, {"notes", choice.formats.notes}};
}

Result<TextInput> read_text(const Settings& settings) {
  TextInput input;
  const bool text = settings.is_given("text"), ids = settings.is_given("ids-file");
  if (text && ids)
    return invalid_argument("--text and --ids-file were both given; wanted one of them");
  if (ids) {
    input.source = settings.ids_file;
    KVANT_ASSIGN(const std::string list, read_file(settings.ids_file));
    KVANT_ASSIGN(input.ids, parse_ids(list));
  } else if (text) {
    input.source = settings.text_file;
    KVANT_ASSIGN(input.text, read_file(settings.text_file));
  } else {
    input.source = "the built-in sample";
    input.text = kSampleText.substr(0, kSampleText.rfind('\n') + 1);  // it was cut inside a line
  }
  return input;
}

Status check_ids(std::span<const int32_t> ids, const ModelInfo& info) {
  for (int32_t id : ids) {
    if (id < 0 || id >= info.vocab_size) {
      return invalid_argument(
          fmt::format("token id {} is outside the vocabulary of {}", id, info.vocab_size));
    }
  }
  return {};
}

Result<std::vector<int32_t>> context_tokens(const Settings& settings, const TextInput& input,
                                            const Model& model) {
  std::vector<int32_t> tokens = input.ids;
  if (tokens.empty()) {
    KVANT_ASSIGN(tokens, text_tokens(model.tokenizer(), input.text));
  }
  KVANT_TRY(check_ids(tokens, model.info()));
  const auto have = static_cast<int64_t>(tokens.size());
  const int64_t most = model.info().max_positions;
  int64_t wanted = settings.context;
  if (settings.is_given("context")) {
    if (wanted > most)
      return invalid_argument(
          fmt::format("--context {}: the model takes at most {}", wanted, most));
    if (wanted > have) {
      return invalid_argument(
          fmt::format("--context {}: {} has only {} tokens", wanted, input.source, have));
    }
  }
  if (have < 2)
    return invalid_argument(fmt::format("{} has {} tokens, wanted at least 2", input.source, have));
  if (std::min(have, most) < wanted) {
    wanted = std::min(have, most);
    fmt::print(stderr, "note     context is {} tokens: {} has {}, the model takes {}\n", wanted,
               input.source, have, most);
  }
  tokens.resize(static_cast<size_t>(wanted));
  return tokens;
}

}  // namespace kvant::cli
