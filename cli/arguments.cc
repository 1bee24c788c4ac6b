#include "cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "formats/names.h"

namespace kvant::cli {
namespace {

// One command's words: CLI11 cuts them apart, and what it throws becomes a sentence here.
class Parser {
 public:
  Parser(const Command& command, std::span<const std::string> words)
      : command_(command), words_(words.begin(), words.end()) {}

  Result<Arguments> parse() {
    Arguments out;
    out.command = &command_;
    out.invocation.settings = default_settings(command_.groups);
    try {
      add_options(out.invocation);
      split_empty_values();
      app_.parse(std::vector(words_.rbegin(), words_.rend()));  // CLI11 takes a vector from its end
    } catch (const CLI::CallForHelp&) {
      out.help = true;
      return out;
    } catch (const CLI::ArgumentMismatch&) {  // at the end only: elsewhere a word follows
      return no_value(words_.back());
    } catch (const CLI::ExtrasError&) {
      return unexpected();
    } catch (const CLI::Error& e) {
      return wrong(e.what());
    }
    KVANT_TRY(check_no_option_is_a_value());
    if (out.invocation.model.empty() && !command_.positional.empty() &&
        !command_.positional.starts_with('['))
      return wrong(fmt::format("{} is missing", command_.positional));
    KVANT_TRY(take_values(out.invocation.settings));
    return out;
  }

 private:
  void add_options(Invocation& out) {
    for (const OptionSpec* spec : options_of(command_.groups)) {
      std::string name = fmt::format("--{}", spec->long_name());
      if (!spec->short_name().empty()) name = fmt::format("-{},{}", spec->short_name(), name);
      if (spec->form == TextForm::kOptional) name += "{-}";  // the value where none is given
      CLI::Option* option = spec->is_flag() || spec->form == TextForm::kOptional
                                ? app_.add_flag(name)
                                : app_.add_option(name);
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
          ->type_name(std::string(spec->metavar));
      options_.emplace_back(spec, option);
    }
    if (!command_.positional.empty()) app_.add_option(std::string(command_.positional), out.model);
  }

  // The option that a word names, or nullptr.
  const CLI::Option* named(const std::string& word) const {
    return word.starts_with('-') ? app_.get_option_no_throw(word) : nullptr;
  }
  bool needs_value(const std::string& word) const {
    return named(word) != nullptr && named(word)->get_items_expected_min() > 0;
  }

  // After "--name=" CLI11 takes the next word for the value; here the value is empty.
  void split_empty_values() {
    for (size_t i = 0; i < words_.size(); ++i) {
      if (!words_[i].ends_with('=')) continue;
      std::string name = words_[i].substr(0, words_[i].size() - 1);
      if (!needs_value(name)) continue;
      words_[i] = std::move(name);
      words_.emplace(words_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }

  // To CLI11 whatever follows is a value. It may begin with a dash, but may not name an option.
  Status check_no_option_is_a_value() const {
    const auto at = std::adjacent_find(
        words_.begin(), words_.end(), [this](const std::string& name, const std::string& value) {
          return needs_value(name) && named(value.substr(0, value.find('='))) != nullptr;
        });
    return at == words_.end() ? Status() : no_value(*at);
  }

  Status take_values(Settings& settings) const {
    for (const auto& [spec, option] : options_) {
      if (option->count() > 1 && !spec->is_list() && !spec->is_flag())
        return wrong(fmt::format("{} was given twice; wanted it once", option->get_name()));
      for (const std::string& value : option->results()) {
        if (spec->is_flag() && value != "true") {
          return wrong(
              fmt::format("{} takes no value, but got {}", option->get_name(), printable(value)));
        }
        KVANT_TRY(set_option(settings, *spec, value));
      }
    }
    return {};
  }

  Status wrong(const std::string& what) const {
    return invalid_argument(fmt::format("{}; see kvant {} --help", what, command_.name));
  }

  Status no_value(const std::string& word) const {
    const CLI::Option* option = named(word);  // none for letters in one word, as in -vn
    return wrong(fmt::format("{0} has no value; wanted {0} {1}", printable(word),
                             option != nullptr ? option->get_type_name() : "VALUE"));
  }

  // Speaks of the first word that nothing took.
  Status unexpected() const {
    const std::vector<std::string> left = app_.remaining();
    const bool only_words = left[0] == "--";  // CLI11 leaves the mark among them
    const std::string& word = left[only_words ? 1 : 0];
    if (word.starts_with('-') && !only_words) return unknown_option(word.substr(0, word.find('=')));
    const auto at = std::find(words_.begin(), words_.end(), word);
    if (at != words_.begin() && (at[-1] == "--json" || at[-1] == "--csv"))
      return wrong(fmt::format("{0} {1}: the file comes after =, as in {0}={1}", at[-1], word));
    return wrong(fmt::format("{} is one word too many; kvant {} takes {}",
                             word.empty() ? "an empty word" : word, command_.name,
                             command_.positional.empty()
                                 ? "options only"
                                 : fmt::format("{} and options", command_.positional)));
  }

  Status unknown_option(std::string_view name) const {
    const std::string what =
        fmt::format("kvant {} has no option {}", command_.name, printable(name));
    if (!name.starts_with("--")) return wrong(what);
    std::vector<std::string> names;
    for (const auto& [spec, option] : options_) names.push_back(option->get_name());
    return wrong(fmt::format("{}; the closest are {}", what,
                             nearest_names(name, {names.begin(), names.end()}, 3)));
  }

  const Command& command_;
  std::vector<std::string> words_;
  CLI::App app_;
  std::vector<std::pair<const OptionSpec*, CLI::Option*>> options_;
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
