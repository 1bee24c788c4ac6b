// Runs build/kvant as a process, as a user would.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace kvant::cli {

struct ProgramRun {
  int exit_code = -1;  // −signal if it was killed
  std::string out, err;

  nlohmann::json json() const { return nlohmann::json::parse(out); }
  size_t err_lines() const { return static_cast<size_t>(std::count(err.begin(), err.end(), '\n')); }
};

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A folder of this process's own, removed at its end.
inline const std::filesystem::path& scratch() {
  struct Folder {
    Folder()
        : path(std::filesystem::temp_directory_path() /
               ("kvant-cli-test-" + std::to_string(getpid()))) {
      std::filesystem::create_directories(path);
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::filesystem::path path;
  };
  static const Folder folder;
  return folder.path;
}

inline std::string quoted(const std::string& word) {
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

inline std::string write_file(const std::string& name, const std::string& bytes) {
  const std::filesystem::path path = scratch() / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path.string();
}

// The program's command line for a shell.
inline std::string command_line(const std::vector<std::string>& words) {
  std::string command = quoted(KVANT_PROGRAM);
  for (const std::string& word : words) command += " " + quoted(word);
  return command;
}

// Runs a shell's command line.
inline ProgramRun run_shell(const std::string& line, const std::string& input = "") {
  const std::filesystem::path out = scratch() / "out", err = scratch() / "err";
  const std::string command = "( " + line + " ) >" + quoted(out.string()) + " 2>" +
                              quoted(err.string()) + " <" + quoted(write_file("in", input));
  const int status = std::system(command.c_str());
  ProgramRun run;
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  run.out = slurp(out);
  run.err = slurp(err);
  return run;
}

inline ProgramRun run_program(const std::vector<std::string>& words,
                              const std::string& input = "") {
  return run_shell(command_line(words), input);
}

inline std::string tiny_model(const std::string& name) {
  return std::string(KVANT_TEST_DATA "/models/") + name;
}

// A file of `n` token ids below `vocab`.
inline std::string ids_file(int n, int vocab) {
  const std::filesystem::path path = scratch() / ("ids-" + std::to_string(n));
  std::ofstream file(path);
  for (int i = 0; i < n; ++i) file << (i * 7919 + i / 3 * 31 + 5) % vocab << ' ';
  return path.string();
}

}  // namespace kvant::cli
