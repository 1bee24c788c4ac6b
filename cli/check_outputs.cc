#include "cli/check_outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/output.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

struct NamedFile {
  std::string_view option;
  std::string path;
};

std::vector<NamedFile> outputs_of(const Settings& s) {
  std::vector<NamedFile> files;
  for (const auto& [option, path] :
       {NamedFile{"--json", s.json}, {"--csv", s.csv}, {"--out", s.out}}) {
    if (!path.empty() && !takes_output(path)) files.push_back({option, path});
  }
  return files;
}

std::vector<NamedFile> inputs_of(const Command& command, const Invocation& in) {
  const Settings& s = in.settings;
  std::vector<NamedFile> files;
  if (command.positional.find("MODEL") != command.positional.npos)
    files.push_back({"MODEL", in.model});
  const std::string_view text = s.is_given("text-file") ? "--text-file" : "--text";
  for (const auto& [option, path] : {NamedFile{text, s.text_file},
                                     {"--prompt-file", s.prompt_file},
                                     {"--ids-file", s.ids_file},
                                     {"--prompts", s.prompts_file},
                                     {"--tokenizer", s.tokenizer},
                                     {"--api-key-file", s.api_key_file}}) {
    if (!path.empty()) files.push_back({option, path});
  }
  return files;
}

// Devices and pipes don't count: what is written to them is not what is read.
bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::exists(a, error)) return fs::is_regular_file(a, error) && fs::equivalent(a, b, error);
  return !fs::exists(b, error) && fs::weakly_canonical(fs::absolute(a, error), error) ==
                                      fs::weakly_canonical(fs::absolute(b, error), error);
}

// What a checkpoint's directory holds; a report that an earlier run left there is none of it.
bool belongs_to_model(const fs::path& file) {
  const std::string name = file.filename().string();
  if (file.extension() == ".safetensors" || file.extension() == ".model") return true;
  constexpr std::string_view kNames[] = {"config",       "generation_config",  "tokenizer",
                                         "added_tokens", "special_tokens_map", "vocab",
                                         "merges",       "chat_template",      "model.safetensors"};
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](std::string_view known) { return name.starts_with(known); });
}

// Through links too: a downloaded model is often made of them.
bool is_model_file(const fs::path& file, const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator entries(folder, error);
  return std::any_of(begin(entries), end(entries), [&](const auto& entry) {
    return belongs_to_model(entry.path()) && same_file(file, entry.path());
  });
}

Status check_pair(const NamedFile& output, const NamedFile& input) {
  std::error_code error;
  if (input.option == "MODEL" && fs::is_directory(input.path, error)) {
    if (!is_model_file(output.path, input.path)) return {};
    return invalid_argument(fmt::format("{} {} would overwrite a file of the model; wanted another",
                                        output.option, output.path));
  }
  if (!same_file(output.path, input.path)) return {};
  return invalid_argument(fmt::format("{} {} would overwrite what {} reads; wanted another file",
                                      output.option, output.path, input.option));
}

}  // namespace

Status check_outputs(const Command& command, const Invocation& in) {
  const std::vector<NamedFile> outputs = outputs_of(in.settings), inputs = inputs_of(command, in);
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const NamedFile& input : inputs) KVANT_TRY(check_pair(outputs[i], input));
    for (size_t j = 0; j < i; ++j) {
      if (!same_file(outputs[i].path, outputs[j].path)) continue;
      return invalid_argument(
          fmt::format("{} and {} both go to {}; wanted a file of its own for one of them",
                      outputs[j].option, outputs[i].option, outputs[i].path));
    }
  }
  for (const NamedFile& output : outputs) KVANT_TRY(check_writable(output.path));
  return {};
}

}  // namespace kvant::cli
