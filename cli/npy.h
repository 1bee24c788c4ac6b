// NpyWriter: a float32 matrix as a NumPy file (format 1.0), row by row, so that it never has to be
// in memory at once. A file of that name is replaced when the first rows come, not before.
#pragma once

#include <span>
#include <string>

#include "cli/output.h"

namespace kvant::cli {

class NpyWriter {
 public:
  NpyWriter(std::string path, size_t rows, size_t columns);

  // The next rows, a whole number of them.
  Status write(std::span<const float> rows);
  // Closes the file. internal if other than the announced rows were written.
  Status finish();

 private:
  Status write_bytes(const void* data, size_t bytes);

  std::string path_;
  std::string header_;
  File file_;
  size_t missing_;  // floats
};

}  // namespace kvant::cli
