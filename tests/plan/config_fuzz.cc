// Any bytes as a config.json: the reader answers, and what it accepts can be planned and sharded.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "kvant/plan.h"

namespace kvant {
namespace {

void plan(const ModelShape& shape, std::string_view format) {
  const auto formats = resolve_model_formats(shape, format, "", false);
  if (!formats.ok()) return;
  const auto planner = CachePlanner::create(shape, formats->effective, {});
  if (!planner.ok()) return;
  const auto near = planner->bytes({.tokens = 1});
  const auto far = planner->bytes({.tokens = 100000, .source_tokens = 100});
  if (near.ok() && far.ok() && far->needed < near->needed) std::abort();
}

}  // namespace
}  // namespace kvant

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto shape = kvant::parse_model_shape(text, "config.json");
  if (!shape.ok()) {
    if (shape.status().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  kvant::plan(*shape, "bf16");
  kvant::plan(*shape, "int4");
  const auto stages = kvant::shard_model(*shape, {.tensor = 2, .pipeline = 2, .context = 1});
  if (!stages.ok()) return 0;
  for (const kvant::ModelStage& stage : *stages) kvant::plan(stage.shape, "int4");
  return 0;
}
