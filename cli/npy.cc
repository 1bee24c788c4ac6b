#include "cli/npy.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace kvant::cli {

Result<NpyWriter> NpyWriter::create(const std::string& path, size_t rows, size_t columns) {
  NpyWriter writer;
  writer.path_ = path;
  writer.missing_ = rows * columns;
  writer.file_.reset(std::fopen(path.c_str(), "wb"));
  if (!writer.file_)
    return io_error(fmt::format("{} can't be written: {}", path, std::strerror(errno)));
  // Magic, version, length of what follows (little-endian), a Python literal padded so that the
  // data start at a multiple of 64.
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  constexpr size_t kPrefix = 10;
  while ((kPrefix + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  if (std::fwrite(out.data(), 1, out.size(), writer.file_.get()) != out.size()) {
    return io_error(fmt::format("{} can't be written: {}", path, std::strerror(errno)));
  }
  return writer;
}

Status NpyWriter::write(std::span<const float> rows) {
  if (rows.size() > missing_)
    return internal_error(fmt::format("{}: more rows than announced", path_));
  if (std::fwrite(rows.data(), sizeof(float), rows.size(), file_.get()) != rows.size()) {
    return io_error(fmt::format("{} can't be written: {}", path_, std::strerror(errno)));
  }
  missing_ -= rows.size();
  return {};
}

Status NpyWriter::finish() {
  if (missing_ != 0)
    return internal_error(fmt::format("{}: {} numbers are missing", path_, missing_));
  if (std::fclose(file_.release()) != 0) {
    return io_error(fmt::format("{} can't be written to its end: {}", path_, std::strerror(errno)));
  }
  return {};
}

}  // namespace kvant::cli
