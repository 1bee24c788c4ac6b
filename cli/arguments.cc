#include "cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace kvant::cli {
namespace {

std::string flag_names(const OptionSpec& spec) {
  const size_t comma = spec.name.find(',');
  if (comma == spec.name.npos) return fmt::format("--{}", spec.name);
  return fmt::format("-{},--{}", spec.name.substr(0, comma), spec.name.substr(comma + 1));
}

// Registers one row; values go to `status` when they are wrong, the first one wins.
void add_option(CLI::App& app, const OptionSpec& spec, Settings& settings, Status& status) {
  const auto store = [&spec, &settings, &status](const std::string& value) {
    Status one = set_option(settings, spec, value);
    if (status.ok()) status = std::move(one);
  };
  const bool many = std::holds_alternative<std::vector<std::string> Settings::*>(spec.field);
  if (spec.metavar.empty()) {
    app.add_flag_callback(flag_names(spec), [store] { store("true"); });
  } else if (many) {
    app.add_option_function<std::vector<std::string>>(flag_names(spec),
                                                      [store](const std::vector<std::string>& all) {
                                                        for (const std::string& one : all)
                                                          store(one);
                                                      })
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
  } else if (spec.optional_value) {
    app.add_option_function<std::vector<std::string>>(
           flag_names(spec),
           [store](const std::vector<std::string>& v) {
             store(v.empty() || v[0].empty() ? "-" : v[0]);
           })
        ->expected(0, 1);
  } else {
    app.add_option_function<std::string>(flag_names(spec), store);
  }
}

// CLI11's sentence without its line breaks.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

Result<Arguments> parse_command(const Command& command, std::span<const std::string> words) {
  Arguments out;
  out.command = &command;
  out.invocation.settings = default_settings(command.groups);
  Status status;
  CLI::App app;
  app.set_help_flag("-h,--help");
  for (const OptionSpec* spec : options_of(command.groups)) {
    add_option(app, *spec, out.invocation.settings, status);
  }
  if (!command.positional.empty()) {
    app.add_option(std::string(command.positional), out.invocation.model)->required();
  }
  std::vector<std::string> reversed(words.rbegin(),
                                    words.rend());  // the order in which CLI11 takes a vector
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    out.help = true;
    return out;
  } catch (const CLI::RequiredError&) {
    return invalid_argument(
        fmt::format("{} is missing; see kvant {} --help", command.positional, command.name));
  } catch (const CLI::ParseError& e) {
    return invalid_argument(
        fmt::format("{}; see kvant {} --help", one_line(e.what()), command.name));
  }
  KVANT_TRY(status);
  return out;
}

}  // namespace

Result<Arguments> parse_arguments(std::span<const std::string> words,
                                  std::span<const Command> commands) {
  Arguments out;
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    out.help = true;
    return out;
  }
  if (words[0] == "--version") {
    out.version = true;
    return out;
  }
  for (const Command& command : commands) {
    if (command.name == words[0]) return parse_command(command, words.subspan(1));
  }
  std::vector<std::string_view> names;
  for (const Command& command : commands) names.push_back(command.name);
  return invalid_argument(
      fmt::format("{} is no command; wanted {}", words[0], fmt::join(names, ", ")));
}

}  // namespace kvant::cli
