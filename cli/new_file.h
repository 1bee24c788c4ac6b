// NewFile: a file that takes its name only when it is whole. Until then its bytes lie beside it
// under a name of their own, which goes away with the program, be it by an error or by Ctrl-C.
#pragma once

#include <string>

#include "cli/output.h"

namespace kvant::cli {

class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)) {}
  ~NewFile();  // where finish() wasn't reached: as if nothing had been written
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // io with the path in the message. The first call opens the file.
  Status write(const void* data, size_t bytes);
  Status finish();

 private:
  Status open();
  void remove_temporary();

  std::string path_;
  std::string target_;     // what path_ stands for, links followed
  std::string temporary_;  // empty: written in place
  File file_;
};

}  // namespace kvant::cli
