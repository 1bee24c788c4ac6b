// NpyWriter: a float32 matrix as a NumPy file (format 1.0), row by row, so that it never has to be
// in memory at once.
#pragma once

#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "kvant/status.h"

namespace kvant::cli {

class NpyWriter {
 public:
  static Result<NpyWriter> create(const std::string& path, size_t rows, size_t columns);

  // The next rows, a whole number of them.
  Status write(std::span<const float> rows);
  // Closes the file. internal if other than the announced rows were written.
  Status finish();

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  size_t missing_ = 0;  // floats
};

}  // namespace kvant::cli
