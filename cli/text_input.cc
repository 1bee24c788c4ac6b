#include "cli/text_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "model/tokenizer/unicode.h"

namespace kvant::cli {
namespace {

// More than most texts have in a token, so that one reading mostly does.
constexpr size_t kBytesPerToken = 6;

// How far a text is read in vain for a place to cut it at, beside what its tokens need.
constexpr size_t kFarthestCut = 1 << 24;
constexpr size_t kMostBytesPerToken = 64;

// Whether a character that is no white space begins or ends at a place of a text.
bool begins_dark(std::string_view text, size_t at) {
  if (at >= text.size()) return false;
  const tokenizer::Utf8Step step = tokenizer::utf8_step(text.substr(at));
  return step.unit == tokenizer::Utf8Unit::kCharacter &&
         !tokenizer::is_whitespace(tokenizer::next_char(text, at));
}
bool ends_dark(std::string_view text, size_t end) {
  if (end == 0) return false;
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return begins_dark(text, begin);
}

}  // namespace

size_t safe_cut(std::string_view text) {
  for (const char space : {'\n', ' '}) {
    for (size_t at = text.rfind(space); at != text.npos; at = text.rfind(space, at - 1)) {
      if (ends_dark(text, at) && begins_dark(text, at + 1)) return space == '\n' ? at + 1 : at;
      if (at == 0) break;
    }
  }
  return 0;
}

Result<std::vector<int32_t>> read_ids(const std::string& path) {
  KVANT_ASSIGN(const std::string text, read_file(path));
  const auto in_file = [&](Result<std::vector<int32_t>> ids) {
    return ids.ok() ? ids : ids.status().with_context(path);
  };
  if (text.find_first_not_of(" \t\r\n") != text.find('{')) return in_file(parse_ids(text));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("ids") || !json["ids"].is_array())
    return invalid_argument(fmt::format("{}: wanted token ids, or JSON with a list \"ids\"", path));
  return in_file(parse_ids(json["ids"].dump()));
}

Result<TextInput> TextInput::open(const Settings& settings) {
  TextInput input;
  const bool text = settings.is_given("text"), ids = settings.is_given("ids-file");
  if (text && ids)
    return invalid_argument("--text and --ids-file were both given; wanted one of them");
  if (ids) {
    input.source_ = settings.ids_file;
    KVANT_ASSIGN(input.ids_, read_ids(settings.ids_file));
  } else if (text) {
    input.source_ = settings.text_file;
    KVANT_ASSIGN(input.file_, open_file(settings.text_file));
  } else {
    input.source_ = "the built-in sample";
    input.text_ = kSampleText.substr(0, kSampleText.rfind('\n') + 1);
  }
  return input;
}

Status TextInput::read_to(size_t bytes) {
  char buffer[1 << 16];
  while (file_ && text_.size() < bytes) {
    const size_t n = std::fread(buffer, 1, sizeof buffer, file_.get());
    text_.append(buffer, n);
    if (std::ferror(file_.get()) != 0)
      return io_error(fmt::format("{} can't be read to its end", source_));
    if (n == 0) file_.reset();
  }
  return {};
}

Result<std::vector<int32_t>> TextInput::first_ids(const Tokenizer& tokenizer, int64_t count) {
  const auto wanted = static_cast<size_t>(count);
  const size_t most = kFarthestCut + (wanted + kDistrustedIds) * kMostBytesPerToken;
  std::vector<int32_t> ids = ids_;
  for (size_t bytes = (wanted + kDistrustedIds) * kBytesPerToken; ids_.empty(); bytes *= 2) {
    KVANT_TRY(read_to(bytes));
    const bool whole = !file_ && text_.size() <= bytes;
    std::string_view part = text_;
    if (!whole) part = part.substr(0, safe_cut(part));
    KVANT_ASSIGN(ids, text_tokens(tokenizer, part));
    used_ = part.size();
    if (whole || ids.size() >= wanted + kDistrustedIds) break;
    if (bytes < most) continue;
    return invalid_argument(fmt::format(
        "{}: its first {} have {} before the last line break or blank between two words; wanted {} "
        "before one, to cut the text there",
        source_, human_bytes(static_cast<double>(bytes)),
        counted(static_cast<int64_t>(ids.size()), "token"), wanted + kDistrustedIds));
  }
  ids.resize(std::min(ids.size(), wanted));
  return ids;
}

std::vector<int32_t> TextInput::window_prefix(const Tokenizer& tokenizer) const {
  if (!ids_.empty() || !tokenizer.bos()) return {};
  const std::vector<int32_t> around = tokenizer.encode("", SpecialTokens::kAdd);
  if (around.empty() || around.front() != *tokenizer.bos()) return {};
  return {*tokenizer.bos()};
}

Status check_ids(std::span<const int32_t> ids, const ModelInfo& info) {
  for (int32_t id : ids) {
    if (id < 0 || id >= info.vocab_size) {
      return invalid_argument(
          fmt::format("token id {} is outside the vocabulary of {}", id, info.vocab_size));
    }
  }
  return {};
}

Result<WindowedText> read_windows(const Settings& settings, TextInput& input, const Model& model) {
  const int64_t most = model.info().max_positions;
  const std::vector<int32_t> prefix = input.window_prefix(model.tokenizer());
  const auto repeated = static_cast<int64_t>(prefix.size());  // by every window but the first
  WindowedText out;
  out.context = std::min(settings.context, most);
  const auto needed = [&] {
    return settings.windows * out.context - (settings.windows - 1) * repeated;
  };
  KVANT_ASSIGN(const std::vector<int32_t> ids, input.first_ids(model.tokenizer(), needed()));
  KVANT_TRY(check_ids(ids, model.info()));
  note_bad_utf8(input.used_text(), "the text");
  const auto have = static_cast<int64_t>(ids.size());
  if (have < needed()) {
    if (settings.windows > 1 || settings.is_given("context")) {
      return invalid_argument(
          fmt::format("{} has only {}, wanted {} for --context {} and --windows {}", input.source(),
                      counted(have, "token"), needed(), out.context, settings.windows));
    }
    if (have < 2) {
      return invalid_argument(
          fmt::format("{} has {}, wanted at least 2", input.source(), counted(have, "token")));
    }
    out.context = have;
  }
  if (out.context < settings.context) {
    note("note     --context is {}, all that {} {}\n", out.context,
         out.context < most ? input.source() : "the model", out.context < most ? "has" : "takes");
  }
  for (size_t at = 0; out.ids.size() < static_cast<size_t>(settings.windows * out.context);) {
    if (at > 0) out.ids.insert(out.ids.end(), prefix.begin(), prefix.end());
    const size_t count = static_cast<size_t>(out.context) - (at > 0 ? prefix.size() : 0);
    out.ids.insert(out.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(at),
                   ids.begin() + static_cast<std::ptrdiff_t>(at + count));
    at += count;
  }
  return out;
}

}  // namespace kvant::cli
