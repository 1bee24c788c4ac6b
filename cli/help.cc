#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/wrap.h"

namespace kvant::cli {
namespace {

std::string option_left(const OptionSpec& spec) {
  const std::string_view letter = spec.short_name();
  std::string left = letter.empty() ? std::string(6, ' ') : fmt::format("  -{}, ", letter);
  left += fmt::format("--{}", spec.long_name());
  if (!spec.is_flag())
    left += fmt::format("{}{}", spec.form == TextForm::kOptional ? "" : " ", spec.metavar);
  return left;
}

}  // namespace

std::string program_help(std::span<const Command> commands) {
  std::string out =
      "kvant: quantized KV caches for language models, measured.\n"
      "\n"
      "A model's KV cache grows with every token. kvant stores it in fewer bits, computes "
      "attention on\n"
      "those bits, and tells you what that costs. Three commands to start with:\n"
      "\n"
      "  kvant compare model.gguf               what every format costs, in one table\n"
      "  kvant generate model.gguf -p \"Hello\"   an answer, with the cache in 16 bits\n"
      "  kvant chat model.gguf --kv int8        a conversation, with the cache in 8 bits\n"
      "\n"
      "MODEL is a GGUF file or a Hugging Face directory.\n";
  std::string_view section;
  for (const Command& c : commands) {
    if (c.section != section) out += fmt::format("\n{}\n", c.section);
    section = c.section;
    out += fmt::format("  {:<12}", c.name);
    append_wrapped(out, c.summary, 14);
  }
  out +=
      "\nFormats, as --kv takes them\n"
      "  A preset (int8, k8v4, int4, int3, int2, fp8, kivi4, kivi2) picks what is best for the "
      "model at\n"
      "  that size. A format names one way exactly:\n"
      "\n"
      "    int4_token_z_rot     4-bit integers, one scale per token, with a zero point, rotated\n"
      "    int8_channel_z       8 bits, one scale per channel over a page of 64 tokens\n"
      "    fp8_e4m3             8-bit floats with no scale\n"
      "\n"
      "  K and V apart: int8_token/int4_token_z_rot. A list: bf16,int8,k8v4. All of them: kvant "
      "formats.\n"
      "\n"
      "kvant COMMAND --help, or kvant help COMMAND, shows a command's options and an example.\n";
  return out;
}

std::string command_help(const Command& command) {
  std::string out = fmt::format("kvant {}{}{} [options]\n\n", command.name,
                                command.positional.empty() ? "" : " ", command.positional);
  append_wrapped(out, fmt::format("{}.", command.summary), 0);
  out += '\n';
  append_wrapped(out, command.about, 0);
  out += "\nExample\n";
  for (std::string_view rest = command.example; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    out += fmt::format("  {}\n", rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::string_view title;
  for (const OptionSpec* spec : options_of(command.groups)) {
    if (group_title(spec->group) != title) out += fmt::format("\n{}\n", group_title(spec->group));
    title = group_title(spec->group);
    out += fmt::format("{:<28}", option_left(*spec));
    if (out.back() != ' ') out += "\n" + std::string(28, ' ');  // too long to stand beside its help
    std::string help(spec->help);
    if (!spec->fallback.empty()) help += fmt::format(" (default {})", spec->fallback);
    append_wrapped(out, help, 28);
  }
  return out;
}

}  // namespace kvant::cli
