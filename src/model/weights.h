// Loads weights: from a tensor of any stored type to a matrix of the type that --weights asks for,
// or to plain floats.
//
// Native weights stay in the file's mapping. Conversions run on the thread pool, row by row,
// through float32. A loader also keeps the account that `inspect` prints. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "kvant/status.h"
#include "model/matrix.h"
#include "model/model.h"
#include "model/tensor_source.h"

namespace kvant {

class WeightLoader {
 public:
  WeightLoader(const TensorSource& source, WeightType type, ThreadPool& threads)
      : source_(source), type_(type), threads_(threads) {}

  bool has(std::string_view name) const { return source_.has(name); }

  // A matrix of exactly [rows][cols]. A tensor of more dimensions counts as the matrix of its last
  // one (stacked experts).
  Result<Matrix> matrix(std::string_view name, int64_t rows, int64_t cols);
  // The same matrix in pages, where its type has them and it fills one; then its own rows are gone.
  Matrix in_pages(Matrix matrix);
  // `size` floats.
  Result<std::vector<float>> vector(std::string_view name, int64_t size);
  // The same, or empty if there is no such tensor.
  Result<std::vector<float>> optional_vector(std::string_view name, int64_t size);

  // Says that a tensor isn't needed.
  void skip(std::string_view name) { used_.emplace(name); }
  // unsupported if the file has a tensor that nothing asked for: the model then has a part that
  // would be left out. Frequency tables, which the configuration gives as well, and names with an
  // ignored prefix don't count.
  Status check_all_used(std::span<const std::string> ignored_prefixes) const;

  // Bytes that converting every matrix of the file would take, before any is loaded.
  uint64_t conversion_bytes() const;

  // Who multiplies few rows: "pages avx512_vnni, ggml zen4", or one of them.
  std::string row_path() const;

  uint64_t bytes() const { return bytes_; }
  // What the file's tensors will not be of what --weights asks for, one sentence each.
  std::vector<std::string> notes() const;
  uint64_t parameters() const { return parameters_; }
  const std::map<std::string, int>& types() const { return types_; }

 private:
  // Every tensor of two or more dimensions, as the matrix of its last one.
  void for_each_matrix(const std::function<void(const Matrix&)>& visit) const;
  Result<Matrix> convert(const Matrix& stored, const std::string& where);
  void account(uint32_t type, uint64_t bytes, uint64_t parameters);

  const TensorSource& source_;
  WeightType type_;
  ThreadPool& threads_;
  uint64_t bytes_ = 0;
  uint64_t parameters_ = 0;
  WeightPages::Memory page_memory_;
  bool has_pages_ = false, has_rows_ = false;  // among the matrices that went through in_pages()
  std::map<std::string, int> types_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace kvant
