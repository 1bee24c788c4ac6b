// Kvant's planner as a library: the bytes of a model's cache from the text of its config.json.
//
//   plan_example [FORMAT[,FORMAT]]      formats as --kv takes them; bf16,int8,int4 if none is given
//
// The configuration is Gemma 3's way in small: five layers that see 512 tokens for one that sees
// all. No weights are read, and no cache is made.
#include "kvant/plan.h"

#include <cstdio>
#include <string>
#include <vector>

namespace {

using kvant::ModelShape;
using kvant::Status;

constexpr const char* kConfig = R"({
  "model_type": "gemma3_text",
  "num_hidden_layers": 12,
  "hidden_size": 1024,
  "num_attention_heads": 8,
  "num_key_value_heads": 2,
  "head_dim": 128,
  "sliding_window": 512,
  "sliding_window_pattern": 6,
  "max_position_embeddings": 131072
})";

// One line per format and length.
void print_rows(const kvant::Plan& plan) {
  for (const kvant::PlanRow& row : plan.rows) {
    std::printf(
        "%-6s %7lld tokens: %10llu bytes, %.2f bits per element; a device of 64 MiB %s, and holds "
        "up to %lld tokens\n",
        row.format.c_str(), static_cast<long long>(row.tokens),
        static_cast<unsigned long long>(row.bytes.kv()), row.effective_bits,
        row.fits.value_or(false) ? "has room" : "is too small",
        static_cast<long long>(row.max_context));
  }
  for (const std::string& note : plan.notes) std::printf("note: %s\n", note.c_str());
}

Status run(kvant::PlanRequest request) {
  KVANT_ASSIGN(const ModelShape shape, kvant::parse_model_shape(kConfig, "config.json"));
  request.tokens = {1024, 32768, 131072};
  request.memory = kvant::DeviceMemory{.total = 64 << 20};
  KVANT_ASSIGN(const kvant::Plan plan, kvant::plan_model(shape, request));
  print_rows(plan);

  // How one of these numbers comes about.
  request.formats = {request.formats.back()};
  request.tokens = {1024};
  KVANT_ASSIGN(const std::string calculation, kvant::explain_plan(shape, request));
  std::printf("\n%s", calculation.c_str());
  return {};
}

std::vector<std::string> split(std::string list) {
  std::vector<std::string> items;
  for (size_t comma; (comma = list.find(',')) != list.npos; list.erase(0, comma + 1))
    items.push_back(list.substr(0, comma));
  items.push_back(list);
  return items;
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = run({.formats = split(argc > 1 ? argv[1] : "bf16,int8,int4")});
  if (status.ok()) return 0;
  std::fprintf(stderr, "plan_example: %s\n", status.message().c_str());
  return kvant::exit_code(status.code());
}
