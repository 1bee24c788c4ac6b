#include "cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/names.h"

namespace kvant::cli {
namespace {

bool is_optional(std::string_view positional) { return positional.starts_with('['); }

// Goes through the words of one command.
class Parser {
 public:
  Parser(const Command& command, std::span<const std::string> words)
      : command_(command), words_(words), options_(options_of(command.groups)) {
    out_.command = &command;
    out_.invocation.settings = default_settings(command.groups);
  }

  Result<Arguments> parse() {
    while (next_ < words_.size()) {
      const std::string& word = words_[next_++];
      if (only_words_ || !word.starts_with('-') || word == "-") {
        KVANT_TRY(take_positional(word));
      } else if (word == "--") {
        only_words_ = true;
      } else if (word == "--help" || word == "-h") {
        out_.help = true;
        return std::move(out_);
      } else {
        KVANT_TRY(word.starts_with("--") ? take_long(word) : take_short(word));
      }
    }
    if (out_.invocation.model.empty() && !command_.positional.empty() &&
        !is_optional(command_.positional)) {
      return wrong(fmt::format("{} is missing", command_.positional));
    }
    return std::move(out_);
  }

 private:
  Status wrong(const std::string& what) const {
    return invalid_argument(fmt::format("{}; see kvant {} --help", what, command_.name));
  }

  Status take_positional(const std::string& word) {
    if (word.empty()) return wrong("an argument is empty; wanted a value or none");
    if (out_.invocation.model.empty() && !command_.positional.empty()) {
      out_.invocation.model = word;
      return {};
    }
    const std::string& before = next_ >= 2 ? words_[next_ - 2] : word;
    if (before == "--json" || before == "--csv") {
      return wrong(fmt::format("{0} {1}: the file comes after =, as in {0}={1}", before, word));
    }
    return wrong(fmt::format("{} is one word too many; kvant {} takes {}", word, command_.name,
                             command_.positional.empty()
                                 ? "options only"
                                 : fmt::format("{} and options", command_.positional)));
  }

  // "--name" or "--name=value".
  Status take_long(std::string_view word) {
    const size_t equals = std::min(word.find('='), word.size());
    const std::string_view name = word.substr(0, equals);
    for (const OptionSpec* spec : options_) {
      if (spec->long_name() != name.substr(2)) continue;
      if (equals == word.size()) return take_option(*spec, name, std::nullopt);
      return take_option(*spec, name, word.substr(equals + 1));
    }
    std::vector<std::string> names;
    for (const OptionSpec* spec : options_) names.push_back(fmt::format("--{}", spec->long_name()));
    return wrong(fmt::format("kvant {} has no option {}; the closest are {}", command_.name,
                             printable(name),
                             nearest_names(name, {names.begin(), names.end()}, 3)));
  }

  // "-n", "-nVALUE" or "-n=VALUE".
  Status take_short(std::string_view word) {
    for (const OptionSpec* spec : options_) {
      if (spec->short_name() != word.substr(1, 1)) continue;
      std::string_view rest = word.substr(2);
      if (rest.empty()) return take_option(*spec, word, std::nullopt);
      if (rest.starts_with('=')) rest.remove_prefix(1);
      return take_option(*spec, word.substr(0, 2), rest);
    }
    return wrong(fmt::format("kvant {} has no option {}", command_.name, printable(word)));
  }

  Status take_option(const OptionSpec& spec, std::string_view name,
                     std::optional<std::string_view> value) {
    Settings& settings = out_.invocation.settings;
    if (spec.is_flag()) {
      if (value)
        return wrong(fmt::format("{} takes no value, but got {}", name, printable(*value)));
      return set_option(settings, spec, "true");
    }
    if (settings.is_given(spec.long_name()) && !spec.is_list())
      return wrong(fmt::format("{} was given twice; wanted it once", name));
    if (spec.form == TextForm::kOptional) return set_option(settings, spec, value.value_or("-"));
    if (!value) {
      if (next_ == words_.size() || is_option(words_[next_]))
        return wrong(fmt::format("{} has no value; wanted {} {}", name, name, spec.metavar));
      value = words_[next_++];
    }
    return set_option(settings, spec, *value);
  }

  // Whether a word is one of this command's options and so no value: values may begin with a dash.
  bool is_option(std::string_view word) const {
    if (word == "-h" || word == "--help") return true;
    return std::any_of(options_.begin(), options_.end(), [&](const OptionSpec* spec) {
      return word.starts_with("--") ? word.substr(2, word.find('=') - 2) == spec->long_name()
                                    : word.starts_with('-') && word.size() == 2 &&
                                          word.substr(1) == spec->short_name();
    });
  }

  const Command& command_;
  std::span<const std::string> words_;
  std::vector<const OptionSpec*> options_;
  size_t next_ = 0;
  bool only_words_ = false;
  Arguments out_;
};

}  // namespace

Result<Arguments> parse_arguments(std::span<const std::string> words,
                                  std::span<const Command> commands) {
  Arguments out;
  const bool asks_help =
      words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help";
  if (asks_help && words.size() < 2) {
    out.help = true;
    return out;
  }
  if (words[0] == "--version") {
    out.version = true;
    return out;
  }
  const std::string& name = asks_help ? words[1] : words[0];
  for (const Command& command : commands) {
    if (command.name != name) continue;
    if (!asks_help) return Parser(command, words.subspan(1)).parse();
    out.command = &command;
    out.help = true;
    return out;
  }
  std::vector<std::string_view> names;
  for (const Command& command : commands) names.push_back(command.name);
  return invalid_argument(
      fmt::format("{} is no command; wanted {}", printable(name), fmt::join(names, ", ")));
}

}  // namespace kvant::cli
