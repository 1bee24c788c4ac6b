#include "model/tensor_source.h"

#include <ggml.h>

#include <array>

#include "model/checkpoint_scales.h"
#include "model/ggml_cpu.h"

namespace kvant {
namespace {

class GgufSource final : public TensorSource {
 public:
  explicit GgufSource(std::shared_ptr<const GgufFile> file) : file_(std::move(file)) {}

  bool has(std::string_view name) const override { return file_->tensor(name) != nullptr; }

  Result<StoredTensor> find(std::string_view name) const override {
    const std::string where = file_->path().string() + ": tensor " + in_quotes(name);
    const GgufTensor* tensor = file_->tensor(name);
    if (tensor == nullptr) return not_found(where + " is missing");
    if (!type_is_known(tensor->type)) {
      return unsupported(where + ": type " + type_name(tensor->type) + " can't be a weight");
    }
    return StoredTensor{
        where, tensor->type, {tensor->dims.rbegin(), tensor->dims.rend()}, tensor->data};
  }

  std::vector<std::string_view> names() const override {
    std::vector<std::string_view> out;
    for (const GgufTensor& tensor : file_->tensors()) out.push_back(tensor.name);
    return out;
  }
  void forget() const override { file_->forget(); }

 private:
  // The tokenizer and the family reader look into the same file.
  std::shared_ptr<const GgufFile> file_;
};

struct DtypeRow {
  std::string_view dtype;
  uint32_t type;
};
constexpr std::array<DtypeRow, 3> kWeightDtypes = {
    {{"F32", GGML_TYPE_F32}, {"F16", GGML_TYPE_F16}, {"BF16", GGML_TYPE_BF16}}};

class SafetensorsSource final : public TensorSource {
 public:
  SafetensorsSource(std::unique_ptr<Safetensors> files, std::string directory)
      : files_(std::move(files)), directory_(std::move(directory)) {}

  bool has(std::string_view name) const override { return files_->tensor(name) != nullptr; }

  Result<StoredTensor> find(std::string_view name) const override {
    const SafetensorsTensor* tensor = files_->tensor(name);
    if (tensor == nullptr) {
      return not_found(directory_ + ": tensor " + in_quotes(name) +
                       " is in none of its safetensors");
    }
    const std::string where = files_->path_of(*tensor).string() + ": tensor " + in_quotes(name);
    for (const DtypeRow& row : kWeightDtypes) {
      if (row.dtype == tensor->dtype)
        return StoredTensor{where, row.type, tensor->shape, tensor->data};
    }
    return unsupported(where + ": dtype " + tensor->dtype + ", wanted F32, F16 or BF16");
  }

  std::vector<std::string_view> names() const override {
    std::vector<std::string_view> out;
    for (const SafetensorsTensor& tensor : files_->tensors()) {
      if (!belongs_to_cache(tensor.name)) out.push_back(tensor.name);
    }
    return out;
  }
  void forget() const override { files_->forget(); }

 private:
  std::unique_ptr<Safetensors> files_;
  std::string directory_;
};

}  // namespace

std::unique_ptr<TensorSource> tensor_source(std::shared_ptr<const GgufFile> file) {
  return std::make_unique<GgufSource>(std::move(file));
}
std::unique_ptr<TensorSource> tensor_source(std::unique_ptr<Safetensors> files,
                                            std::string directory) {
  return std::make_unique<SafetensorsSource>(std::move(files), std::move(directory));
}

}  // namespace kvant
