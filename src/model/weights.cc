#include "model/weights.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <optional>

#include "model/ggml_cpu.h"
#include "simd/cpu.h"

namespace kvant {
namespace {

struct WeightTypeRow {
  std::string_view name;
  WeightType type;
  std::optional<uint32_t> stored;  // nothing: as in the file
};
constexpr std::array<WeightTypeRow, 5> kWeightTypes = {{
    {"native", WeightType::kNative, std::nullopt},
    {"f32", WeightType::kF32, GGML_TYPE_F32},
    {"bf16", WeightType::kBf16, GGML_TYPE_BF16},
    {"q8_0", WeightType::kQ8_0, GGML_TYPE_Q8_0},
    {"q4_0", WeightType::kQ4_0, GGML_TYPE_Q4_0},
}};

// Rows whose length isn't a multiple of the wanted type's block stay as exact as 16 bits allow.
uint32_t target_type(WeightType type, const Matrix& stored) {
  const uint32_t wanted = kWeightTypes[static_cast<size_t>(type)].stored.value_or(stored.type);
  return stored.cols % type_block(wanted) == 0 ? wanted : static_cast<uint32_t>(GGML_TYPE_BF16);
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

uint64_t num_elements(const std::vector<uint64_t>& shape) {
  uint64_t n = 1;  // the readers have checked that the product fits
  for (uint64_t dim : shape) n *= dim;
  return n;
}

// Safetensors promise no alignment; dot products on 16- and 32-bit floats want their own.
bool is_aligned(const Matrix& m) {
  return reinterpret_cast<uintptr_t>(m.data) % alignof(float) == 0;
}

constexpr int64_t kRowsPerItem = 64;

// Tensors that only repeat what the configuration says, or that a rope reader takes by itself.
constexpr std::array<std::string_view, 4> kTables = {"rotary_emb.inv_freq", "rope_freqs.weight",
                                                     "rope_factors_long.weight",
                                                     "rope_factors_short.weight"};

}  // namespace

Result<WeightType> parse_weight_type(std::string_view name) {
  std::string known;
  for (const WeightTypeRow& row : kWeightTypes) {
    if (row.name == name) return row.type;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid_argument("'" + std::string(name) + "' isn't one of " + known);
}

Status WeightLoader::check_all_used(std::span<const std::string> ignored_prefixes) const {
  for (std::string_view name : source_.names()) {
    const bool is_known =
        used_.contains(name) ||
        std::any_of(kTables.begin(), kTables.end(),
                    [&](std::string_view t) { return name.ends_with(t); }) ||
        std::any_of(ignored_prefixes.begin(), ignored_prefixes.end(),
                    [&](const std::string& prefix) { return name.starts_with(prefix); });
    if (!is_known) {
      return unsupported("tensor " + in_quotes(name) +
                         " has no place in this model: a part of it would be left out");
    }
  }
  return {};
}

void WeightLoader::account(uint32_t type, uint64_t bytes, uint64_t parameters) {
  bytes_ += bytes;
  parameters_ += parameters;
  ++types_[type_name(type)];
}

void WeightLoader::for_each_matrix(const std::function<void(const Matrix&)>& visit) const {
  for (std::string_view name : source_.names()) {
    const Result<StoredTensor> tensor = source_.find(name);
    if (!tensor.ok() || tensor->shape.size() < 2 || num_elements(tensor->shape) == 0) continue;
    const auto cols = static_cast<int64_t>(tensor->shape.back());
    const auto rows = static_cast<int64_t>(num_elements(tensor->shape)) / cols;
    visit({tensor->type, rows, cols, 0, tensor->data.data(), {}});
  }
}

uint64_t WeightLoader::conversion_bytes() const {
  uint64_t bytes = 0;
  for_each_matrix([&](const Matrix& stored) {
    const uint32_t type = target_type(type_, stored);
    if (type != stored.type || !is_aligned(stored))
      bytes += static_cast<uint64_t>(stored.rows) * type_row_bytes(type, stored.cols);
  });
  return bytes;
}

std::vector<std::string> WeightLoader::notes() const {
  const WeightTypeRow& asked = kWeightTypes[static_cast<size_t>(type_)];
  int matrices = 0, others = 0;
  for_each_matrix([&](const Matrix& stored) {
    ++matrices;
    others += asked.stored && target_type(type_, stored) != *asked.stored ? 1 : 0;
  });
  if (others == 0) return {};
  return {std::to_string(others) + " of " + std::to_string(matrices) +
          " matrices are stored as BF16, not as " + std::string(asked.name) +
          ": their rows aren't a multiple of " + std::to_string(type_block(*asked.stored))};
}

Result<Matrix> WeightLoader::matrix(std::string_view name, int64_t rows, int64_t cols) {
  KVANT_ASSIGN(const StoredTensor tensor, source_.find(name));
  used_.emplace(name);
  const bool fits =
      tensor.shape.size() >= 2 && tensor.shape.back() == static_cast<uint64_t>(cols) &&
      num_elements(tensor.shape) == static_cast<uint64_t>(rows) * static_cast<uint64_t>(cols);
  if (!fits) {
    return corrupt(tensor.where + ": shape " + shape_text(tensor.shape) + ", wanted [" +
                   std::to_string(rows) + ", " + std::to_string(cols) + "]");
  }
  Matrix stored{tensor.type, rows, cols, type_row_bytes(tensor.type, cols), tensor.data.data(), {}};
  if (target_type(type_, stored) != stored.type || !is_aligned(stored)) {
    KVANT_ASSIGN(stored, convert(stored, tensor.where));
  }
  KVANT_TRY(dot_kernel(stored.type).status().with_context(tensor.where));
  account(stored.type, stored.bytes(), static_cast<uint64_t>(rows * cols));
  return stored;
}

Result<Matrix> WeightLoader::convert(const Matrix& stored, const std::string& where) {
  const uint32_t type = target_type(type_, stored);
  Matrix out = stored;
  out.type = type;
  out.row_bytes = type_row_bytes(type, stored.cols);
  auto bytes = std::make_shared<AlignedArray<std::byte>>(out.bytes());
  if (bytes->size() == 0) return corrupt(where + ": it is empty");
  out.data = bytes->data();
  const auto items = static_cast<size_t>((stored.rows + kRowsPerItem - 1) / kRowsPerItem);
  threads_.run(items, [&](size_t item, int) {
    std::vector<float> row(static_cast<size_t>(stored.cols));
    const int64_t first = static_cast<int64_t>(item) * kRowsPerItem;
    for (int64_t r = first; r < std::min(first + kRowsPerItem, stored.rows); ++r) {
      to_floats(stored.type, stored.row(r), row.data(), stored.cols);
      from_floats(type, row.data(), bytes->data() + static_cast<size_t>(r) * out.row_bytes,
                  stored.cols);
    }
  });
  out.owned = std::move(bytes);
  return out;
}

Matrix WeightLoader::in_pages(Matrix matrix) {
  const bool fits =
      matrix.rows >= WeightPages::kPageRows && WeightPages::can_hold(matrix.type, matrix.cols);
  (fits ? has_pages_ : has_rows_) = true;
  if (!fits) return matrix;
  matrix.pages = WeightPages::make(matrix, page_memory_, threads_);
  matrix.data = nullptr;
  matrix.owned.reset();
  return matrix;
}

std::string WeightLoader::row_path() const {
  const std::string pages = std::string("pages ") + page_kernels(active_isa()).name;
  const std::string rows = "ggml " + std::string(ggml_cpu_variant());
  return has_pages_ && has_rows_ ? pages + ", " + rows : has_pages_ ? pages : rows;
}

Result<std::vector<float>> WeightLoader::vector(std::string_view name, int64_t size) {
  KVANT_ASSIGN(const StoredTensor tensor, source_.find(name));
  used_.emplace(name);
  if (num_elements(tensor.shape) != static_cast<uint64_t>(size)) {
    return corrupt(tensor.where + ": shape " + shape_text(tensor.shape) + ", wanted [" +
                   std::to_string(size) + "]");
  }
  std::vector<float> out(static_cast<size_t>(size));
  to_floats(tensor.type, tensor.data.data(), out.data(), size);
  account(tensor.type, out.size() * sizeof(float), out.size());
  return out;
}

Result<std::vector<float>> WeightLoader::optional_vector(std::string_view name, int64_t size) {
  if (!has(name)) return std::vector<float>();
  return vector(name, size);
}

}  // namespace kvant
