// kvant inspect: what a model is, before it is run.

#include <fmt/format.h>

#include <algorithm>

#include "cli/calibration_use.h"
#include "cli/command.h"
#include "cli/inspect_scales.h"
#include "cli/inspect_sidecar.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "formats/names.h"

namespace kvant::cli {
namespace {

std::string shape_text(const CacheLayer& l) {
  if (l.shares >= 0) return fmt::format("reads the cache of layer {}", l.shares);
  if (l.num_kv_heads == 0) return "no cache";
  std::string out = fmt::format("{}, K {}", counted(l.num_kv_heads, "KV head"), l.key_dim);
  out += l.value_source == ValueSource::kOwnStream
             ? fmt::format(", V {}", l.value_dim)
             : fmt::format(", V = channels {} to {} of K", l.value_offset,
                           l.value_offset + l.value_dim - 1);
  out += l.window > 0 ? fmt::format(", window {}", l.window) : ", full";
  return out;
}

// Layers of one shape on one line: "layers 0-4,6-10: 1 KV head, …".
std::string layers_text(const ModelInfo& info) {
  std::vector<std::pair<std::string, std::vector<int>>> shapes;
  for (size_t l = 0; l < info.cache_layers.size(); ++l) {
    const std::string shape = shape_text(info.cache_layers[l]);
    auto it =
        std::find_if(shapes.begin(), shapes.end(), [&](const auto& s) { return s.first == shape; });
    if (it == shapes.end()) it = shapes.insert(shapes.end(), {shape, {}});
    it->second.push_back(static_cast<int>(l));
  }
  std::string out;
  for (const auto& [shape, layers] : shapes) {
    out += fmt::format("  layer{} {}: {}\n", layers.size() == 1 ? "" : "s", index_ranges(layers),
                       shape);
  }
  return out;
}

// Of one token in bf16, over all layers.
double bf16_bytes(const ModelInfo& info) {
  double bytes = 0;
  for (const CacheLayer& l : info.cache_layers) {
    if (l.shares >= 0) continue;
    const int value = l.value_source == ValueSource::kOwnStream ? l.value_dim : 0;
    bytes += 2.0 * l.num_kv_heads * (l.key_dim + value);
  }
  return bytes;
}

Json inspect_json(const Model& model) {
  const ModelInfo& info = model.info();
  const Tokenizer& t = model.tokenizer();
  Json layers = Json::array();
  for (const CacheLayer& l : info.cache_layers) {
    layers.push_back({{"kv_heads", l.num_kv_heads},
                      {"key_dim", l.key_dim},
                      {"value_dim", l.value_dim},
                      {"window", l.window},
                      {"shares", l.shares}});
  }
  Json types = Json::object();
  for (const auto& [type, count] : info.weight_types) types[type] = count;
  return {{"path", info.path},
          {"name", info.name},
          {"architecture", info.architecture},
          {"num_layers", info.num_layers},
          {"hidden_size", info.hidden_size},
          {"num_query_heads", info.num_query_heads},
          {"vocab_size", info.vocab_size},
          {"max_positions", info.max_positions},
          {"qk_norm", info.traits.qk_norm},
          {"num_parameters", info.num_parameters},
          {"weight_bytes", info.weight_bytes},
          {"weight_types", types},
          {"compute", info.compute},
          {"bf16_bytes_per_token", bf16_bytes(info)},
          {"declared_kv", declared_json(info)},
          {"cache_layers", layers},
          {"tokenizer", t.description()},
          {"bos", t.bos() ? Json(*t.bos()) : Json()},
          {"end_of_generation",
           std::vector<int32_t>(t.end_of_generation().begin(), t.end_of_generation().end())},
          {"chat_template", std::string(t.chat_template())}};
}

std::string render(const Model& model) {
  const ModelInfo& info = model.info();
  const Tokenizer& t = model.tokenizer();
  std::string out = fmt::format("{}\n", info.name.empty() ? info.path : info.name);
  out += fmt::format("architecture {}, {}, hidden {}, {}{}\n", info.architecture,
                     counted(info.num_layers, "layer"), info.hidden_size,
                     counted(info.num_query_heads, "query head"),
                     info.traits.qk_norm ? ", q/k norms" : "");
  out += fmt::format("parameters   {}; {} of weights\n",
                     human_count(static_cast<double>(info.num_parameters)),
                     human_bytes(static_cast<double>(info.weight_bytes)));
  for (const auto& [type, count] : info.weight_types)
    out += fmt::format("  {} of {}\n", counted(count, "tensor"), type);
  out += fmt::format("compute      {}\n", info.compute);
  out += fmt::format("context      {} tokens\n", info.max_positions);
  out += fmt::format("cache        {} a token in bf16\n", human_bytes(bf16_bytes(info)));
  if (info.traits.declared != nullptr) {
    out += fmt::format("  the checkpoint declares {}\n", info.traits.declared->name);
  }
  if (info.cache_scales.format != nullptr)
    out += fmt::format("  it carries scales for {} (--scales lists them)\n",
                       info.cache_scales.format->name);
  for (const std::string& note : info.cache_scales.notes) out += fmt::format("  {}\n", note);
  out += layers_text(info);
  std::string ends;
  for (int32_t id : t.end_of_generation()) ends += fmt::format(" {} ({})", id, t.piece(id));
  out += fmt::format("tokenizer    {}, {} tokens\n", t.description(), t.vocab_size());
  out += fmt::format("  begins with {}; ends with{}\n",
                     t.bos() ? fmt::format("{} ({})", *t.bos(), t.piece(*t.bos())) : "nothing",
                     ends.empty() ? " nothing" : ends);
  out += fmt::format("template     {}\n",
                     t.chat_template().empty()
                         ? "none"
                         : fmt::format("{} characters of Jinja", t.chat_template().size()));
  return out;
}

Status check_options(const Settings& s) {
  if (s.strict && !s.scales)
    return invalid_argument("--strict: wanted --scales beside it, whose findings it is about");
  if (s.per_head && s.scales)
    return invalid_argument("--per-head doesn't go with --scales, which lists heads anyway");
  return {};
}

}  // namespace

Status run_inspect(const Invocation& in) {
  const Settings& s = in.settings;
  KVANT_TRY(check_options(s));
  if (s.scales) return inspect_scales(in);
  KVANT_ASSIGN(std::optional<Sidecar> sidecar, lone_sidecar(in.model));
  Json json = Json::object();
  std::string text;
  if (!sidecar) {
    KVANT_ASSIGN(const OpenModel open, open_model(in, {}));
    KVANT_ASSIGN(sidecar, open_calibration(in));
    json = inspect_json(*open.model);
    text = render(*open.model) + (sidecar ? "\n" : "");
  }
  if (sidecar) {
    json["calibration"] = sidecar_json(*sidecar);
    text += sidecar_text(*sidecar, s.per_head, has_colors(stdout));
  }
  if (!s.json.empty()) KVANT_TRY(write_json(s.json, json));
  return takes_output(s.json) ? Status() : write_text("-", text);
}

}  // namespace kvant::cli
