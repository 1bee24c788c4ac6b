#include "model/model_identity.h"

#include <ggml.h>

#include <dnnl.hpp>

#include "base/hash.h"
#include "files/fingerprint.h"
#include "files/mapped_file.h"

namespace kvant {
namespace {

// What oneDNN is: its version, its build, and the instruction set that it takes here.
void add_onednn(HashInput& input) {
  const dnnl_version_t* version = dnnl_version();
  for (const int part : {version->major, version->minor, version->patch})
    input.add(static_cast<uint64_t>(part));
  input.add(version->hash).add(static_cast<uint64_t>(dnnl::get_effective_cpu_isa()));
}

}  // namespace

Result<std::string> model_identity(const std::filesystem::path& path, const ModelInfo& info,
                                   const ModelOptions& options) {
  KVANT_ASSIGN(const std::string fingerprint, model_fingerprint(path));
  HashInput input("kvant model");
  input.add(fingerprint);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    KVANT_ASSIGN(const MappedFile config, MappedFile::open(path / "config.json"));
    input.add(config.bytes());
  }
  input.add(static_cast<uint64_t>(options.weights)).add(uint64_t{options.invariant});
  input.add(static_cast<uint64_t>(options.context));
  // Names the code for few and many rows, and the variants that this processor takes.
  input.add(info.compute);
  input.add(ggml_version()).add(ggml_commit());
  add_onednn(input);
  input.add(__VERSION__);
  return hex(input.hash());
}

}  // namespace kvant
