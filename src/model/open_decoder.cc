#include "model/open_decoder.h"

#include "files/json.h"
#include "files/safetensors.h"
#include "model/families.h"
#include "plan/declared_kv.h"

namespace kvant {
namespace {

Result<OpenDecoder> open_gguf(const std::filesystem::path& path, const ModelOptions& options,
                              ThreadPool& threads) {
  OpenDecoder out;
  KVANT_ASSIGN(out.gguf, GgufFile::open(path));
  KVANT_ASSIGN(DecoderSpec spec, read_spec(*out.gguf, options.context));
  KVANT_ASSIGN(out.decoder, Decoder::load(std::move(spec), tensor_source(out.gguf), options,
                                          threads, path.string()));
  return out;
}

// Scales of the cache, and what the checkpoint declares in the light of them.
Status read_scales(const Safetensors& files, DecoderSpec& spec) {
  std::vector<int> heads;
  for (const LayerSpec& layer : spec.layers) heads.push_back(layer.num_kv_heads);
  KVANT_ASSIGN(const std::vector<CheckpointScale> found, read_checkpoint_scales(files));
  KVANT_ASSIGN(spec.cache_scales, usable_scales(found, heads, spec.declared_kv));
  if (spec.declared_kv != nullptr && spec.cache_scales.format != nullptr)
    spec.declared_kv = spec.cache_scales.format;
  return {};
}

Result<OpenDecoder> open_directory(const std::filesystem::path& path, const ModelOptions& options,
                                   ThreadPool& threads) {
  OpenDecoder out;
  KVANT_ASSIGN(const JsonDocument config, JsonDocument::open(path / "config.json"));
  KVANT_ASSIGN(DecoderSpec spec, read_spec(config.root(), options.context));
  KVANT_ASSIGN(spec.declared_kv, read_declared_kv(config.root(), path));
  KVANT_ASSIGN(std::unique_ptr<Safetensors> files, Safetensors::open_directory(path));
  KVANT_TRY(read_scales(*files, spec));
  KVANT_ASSIGN(out.decoder,
               Decoder::load(std::move(spec), tensor_source(std::move(files), path.string()),
                             options, threads, path.string()));
  return out;
}

}  // namespace

Result<OpenDecoder> open_decoder(const std::filesystem::path& path, const ModelOptions& options,
                                 ThreadPool& threads) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return not_found(path.string() + ": no such file or directory");
  if (std::filesystem::is_directory(path, ignored)) return open_directory(path, options, threads);
  return open_gguf(path, options, threads);
}

}  // namespace kvant
