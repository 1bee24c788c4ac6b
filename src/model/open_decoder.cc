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

Result<OpenDecoder> open_directory(const std::filesystem::path& path, const ModelOptions& options,
                                   ThreadPool& threads) {
  OpenDecoder out;
  KVANT_ASSIGN(const JsonDocument config, JsonDocument::open(path / "config.json"));
  KVANT_ASSIGN(DecoderSpec spec, read_spec(config.root(), options.context));
  KVANT_ASSIGN(spec.declared_kv, read_declared_kv(config.root(), path));
  KVANT_ASSIGN(std::unique_ptr<Safetensors> files, Safetensors::open_directory(path));
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
