#include "cli/npy.h"

#include <fmt/format.h>

namespace kvant::cli {

NpyWriter::NpyWriter(std::string path, size_t rows, size_t columns)
    : path_(std::move(path)), file_(path_), missing_(rows * columns) {
  // Magic, version, length of what follows (little-endian), a Python literal padded so that the
  // data start at a multiple of 64.
  std::string literal =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  constexpr size_t kPrefix = 10;
  while ((kPrefix + literal.size() + 1) % 64 != 0) literal += ' ';
  literal += '\n';
  header_ = std::string("\x93NUMPY\x01\x00", 8);
  header_ += static_cast<char>(literal.size() & 0xff);
  header_ += static_cast<char>(literal.size() >> 8);
  header_ += literal;
}

Status NpyWriter::write(std::span<const float> rows) {
  if (rows.size() > missing_)
    return internal_error(fmt::format("{}: more rows than announced", path_));
  if (!begun_) KVANT_TRY(file_.write(header_.data(), header_.size()));
  begun_ = true;
  KVANT_TRY(file_.write(rows.data(), rows.size_bytes()));
  missing_ -= rows.size();
  return {};
}

Status NpyWriter::finish() {
  if (missing_ != 0)
    return internal_error(fmt::format("{}: {} numbers are missing", path_, missing_));
  return file_.finish();
}

}  // namespace kvant::cli
