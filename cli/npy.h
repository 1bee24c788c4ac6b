// NpyWriter: a float32 matrix as a NumPy file (format 1.0), row by row, so that it never has to be
// in memory at once. A file of that name is replaced when the last rows are there, not before.
#pragma once

#include <span>
#include <string>

#include "cli/new_file.h"

namespace kvant::cli {

class NpyWriter {
 public:
  NpyWriter(std::string path, size_t rows, size_t columns);

  // The next rows, a whole number of them.
  Status write(std::span<const float> rows);
  // Closes the file. internal if other than the announced rows were written.
  Status finish();

 private:
  std::string path_;
  std::string header_;
  NewFile file_;
  bool begun_ = false;
  size_t missing_;  // floats
};

}  // namespace kvant::cli
