// Attention errors of every registered format on a real model's own keys, values and queries, as
// the table of docs/numerics.md: format_errors MODEL TEXT [TOKENS] [PREFIX]. Formats whose names
// start with PREFIX are measured alone; K is in the format while V stays exact for the scores, both
// are in it for the outputs. A format that can't serve the model's rows is named with the reason.
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "evaluate/attention_error.h"
#include "model/model.h"

namespace kvant {
namespace {

constexpr int kChunk = 512;

struct Request {
  std::string model, text, prefix;
  size_t tokens;
};

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "0.0123 (layer 7: 0.0310)"
std::string cell(double all, const AttentionErrors& errors, double AttentionError::*what) {
  size_t worst = 0;
  for (size_t l = 0; l < errors.layers.size(); ++l) {
    if (errors.layers[l].*what > errors.layers[worst].*what) worst = l;
  }
  return fmt::format("{:.2e} ({}: {:.2e})", all, worst, errors.layers[worst].*what);
}

Status print_row(const FormatInfo& format, const AttentionTrace& trace, CacheOptions options,
                 ThreadPool& threads) {
  double bits = 0, sides = 0;
  for (CacheLayer& layer : options.layers) {
    layer.formats.key = format.for_keys ? format.name : "bf16";
    layer.formats.value = format.for_values ? format.name : "bf16";
  }
  const CacheLayer& layer = options.layers.front();
  for (const auto& [side, dim, used] : {std::tuple{Side::kKey, layer.key_dim, format.for_keys},
                                        {Side::kValue, layer.value_dim, format.for_values}}) {
    if (!used) continue;
    KVANT_ASSIGN(const double side_bits, sealed_bits(format, side, dim));
    bits += side_bits;
    sides += 1;
  }
  KVANT_ASSIGN(const AttentionErrors errors, attention_errors(trace, options, threads));
  fmt::print("| {} | {:.2f} | {} | {} |\n", format.name, bits / sides,
             cell(errors.all.scores, errors, &AttentionError::scores),
             cell(errors.all.outputs, errors, &AttentionError::outputs));
  return {};
}

Status run(const Request& request) {
  ThreadPool threads(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  KVANT_ASSIGN(const std::unique_ptr<Model> model,
               Model::load(request.model, {.weights = WeightType::kF32}, threads));
  std::vector<int32_t> ids =
      model->tokenizer().encode(read_text(request.text), SpecialTokens::kAdd);
  ids.resize(std::min(ids.size(), request.tokens));
  KVANT_ASSIGN(const AttentionTrace trace, trace_attention(*model, threads, ids, kChunk));
  CacheOptions options;
  options.layers = model->info().cache_layers;
  fmt::print(
      "{} tokens, the last {} ask; layers' root mean square, and the worst layer\n\n"
      "| format | sealed bits | scores (layer: worst) | outputs (layer: worst) |\n"
      "| --- | --- | --- | --- |\n",
      trace.tokens, AttentionTrace::kQueries);
  std::string refused;
  for (const FormatInfo& format : all_formats()) {
    if (!format.name.starts_with(request.prefix)) continue;
    const Status status = print_row(format, trace, options, threads);
    if (!status.ok()) refused += fmt::format("- {}\n", status.message());
  }
  if (!refused.empty()) fmt::print("\nNot for this model's rows:\n\n{}", refused);
  return {};
}

}  // namespace
}  // namespace kvant

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: {} MODEL TEXT [TOKENS] [PREFIX]\n", argv[0]);
    return 2;
  }
  const kvant::Request request{argv[1], argv[2], argc > 4 ? argv[4] : "",
                               argc > 3 ? std::stoul(argv[3]) : 2048};
  const kvant::Status status = kvant::run(request);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
  return status.ok() ? 0 : 1;
}
