// kvant tokenize and kvant detokenize: text to token ids and back. Only the tokenizer is read, no
// weights.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "cli/command.h"
#include "cli/open_tokenizer.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/text_input.h"

namespace kvant::cli {
namespace {

Result<std::string> input_text(const Settings& s) {
  if (s.is_given("text") == s.is_given("text-file")) {
    return invalid_argument("wanted either --text TEXT or --text-file FILE");
  }
  return s.is_given("text") ? s.text : read_file(s.text_file);
}

}  // namespace

Status run_tokenize(const Invocation& in) {
  KVANT_ASSIGN(const std::string text, input_text(in.settings));
  KVANT_ASSIGN(const OpenTokenizer open, open_tokenizer(in.model));
  const Tokenizer& tokenizer = *open.tokenizer;
  const std::vector<int32_t> ids =
      tokenizer.encode(text, in.settings.no_special ? SpecialTokens::kNone : SpecialTokens::kAdd);
  note_bad_utf8(text, "the text");
  if (!in.settings.json.empty()) {
    Json pieces = Json::array();
    for (int32_t id : ids) pieces.push_back(std::string(tokenizer.piece(id)));
    KVANT_TRY(write_json(in.settings.json, {{"ids", ids}, {"pieces", pieces}}));
  }
  if (takes_output(in.settings.json)) return {};
  std::string out;
  for (int32_t id : ids) out += fmt::format("{:>8}  {}\n", id, tokenizer.piece(id));
  return write_text("-", out);
}

Status run_detokenize(const Invocation& in) {
  const Settings& s = in.settings;
  if (s.is_given("ids") == s.is_given("ids-file"))
    return invalid_argument("wanted either --ids 1,2,3 or --ids-file FILE");
  KVANT_ASSIGN(const std::vector<int32_t> ids,
               s.is_given("ids-file") ? read_ids(s.ids_file) : parse_ids(s.ids));
  KVANT_ASSIGN(const OpenTokenizer open, open_tokenizer(in.model));
  for (int32_t id : ids) {
    if (id >= open.tokenizer->vocab_size()) {
      return invalid_argument(fmt::format("token id {} is outside the vocabulary of {}", id,
                                          open.tokenizer->vocab_size()));
    }
  }
  const std::string text = open.tokenizer->decode(ids, !s.keep_special);
  if (!s.json.empty()) KVANT_TRY(write_json(s.json, {{"text", text}}));
  return takes_output(s.json) ? Status() : write_text("-", text + "\n");
}

}  // namespace kvant::cli
