// Tokenizer::load for a Hugging Face directory: tokenizer.json, and beside it what names special
// tokens and the chat template: tokenizer_config.json, chat_template.jinja, generation_config.json,
// config.json (all optional).
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "model/tokenizer/read_model.h"
#include "model/tokenizer/read_steps.h"

namespace kvant {
namespace tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxJsonBytes = 1u << 30;

// One parsed file; its nodes live as long as it does.
struct JsonFile {
  simdjson::dom::parser parser;
  std::optional<JsonNode> root;
};

// Transformers writes a model_max_length without limit as 10^30 in full, which simdjson takes for
// no number: integers of 20 digits and more get a fraction, outside of strings.
std::string with_long_integers_as_floats(const fs::path& path) {
  constexpr size_t kLong = 20;
  constexpr std::string_view kDigits = "0123456789";
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::string out;
  bool in_string = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_not_of(kDigits, at), text.size());
    const bool goes_on =
        end < text.size() && std::string_view(".eE").find(text[end]) != std::string_view::npos;
    const bool is_fraction =
        !out.empty() && (out.back() == '.' || out.back() == '+' || out.back() == '-');
    if (end > at) {
      out.append(text, at, end - at);
      if (!in_string && end - at >= kLong && !goes_on && !is_fraction) out += ".0";
      at = end;
      continue;
    }
    if (in_string && text[at] == '\\' && at + 1 < text.size())
      out += text[at++];
    else if (text[at] == '"')
      in_string = !in_string;
    out += text[at++];
  }
  return out;
}

Status parse_file(const fs::path& path, JsonFile& out) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) return not_found(fmt::format("{}: {}", path.string(), error.message()));
  if (bytes > kMaxJsonBytes) {
    return corrupt(
        fmt::format("{}: {} bytes; at most {} are read", path.string(), bytes, kMaxJsonBytes));
  }
  simdjson::dom::element root;
  simdjson::error_code failed = out.parser.load(path.string()).get(root);
  if (failed == simdjson::NUMBER_ERROR)
    failed = out.parser.parse(with_long_integers_as_floats(path)).get(root);
  if (failed == simdjson::IO_ERROR)
    return io_error(fmt::format("{}: could not be read", path.string()));
  if (failed != simdjson::SUCCESS) {
    return corrupt(fmt::format("{}: not JSON: {}", path.string(), simdjson::error_message(failed)));
  }
  out.root.emplace(path.string(), root);
  return out.root->is_object() ? Status()
                               : corrupt(fmt::format("{}: not a JSON object", path.string()));
}

// The same, where an absent file leaves an empty root.
Status parse_optional(const fs::path& path, JsonFile& out) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) return parse_file(path, out);
  const auto empty = out.parser.parse(std::string("{}"));
  out.root.emplace(path.string(), empty.value_unsafe());
  return {};
}

// A special token is named by its text, or by an object with it.
Result<std::optional<int32_t>> find_special(const JsonNode& node, const Vocab& vocab) {
  const JsonNode content = node.is_object() ? node.member("content") : node;
  if (!content.present()) return std::optional<int32_t>();
  KVANT_ASSIGN(const std::string_view text, content.string());
  const int32_t id = vocab.find(text);
  return id == kNoToken ? std::optional<int32_t>() : std::optional<int32_t>(id);
}

void add_id(int64_t id, const Vocab& vocab, std::vector<int32_t>& ids) {
  if (id < 0 || id >= vocab.size()) return;
  const auto small = static_cast<int32_t>(id);
  if (std::find(ids.begin(), ids.end(), small) == ids.end()) ids.push_back(small);
}

// An id or a list of them; ids outside the vocabulary are left out (configs of resized models name
// them).
Status add_ids(const JsonNode& node, const Vocab& vocab, std::vector<int32_t>& ids) {
  if (!node.present()) return {};
  if (!node.is_array()) {
    KVANT_ASSIGN(const int64_t id, node.integer());
    add_id(id, vocab, ids);
    return {};
  }
  KVANT_ASSIGN(const std::vector<JsonNode> elements, node.elements());
  for (const JsonNode& element : elements) {
    KVANT_ASSIGN(const int64_t id, element.integer());
    add_id(id, vocab, ids);
  }
  return {};
}

// A string, or a list of named templates of which "default" counts.
Status read_chat_template(const JsonNode& node, std::string& out) {
  if (!node.present()) return {};
  if (!node.is_array()) {
    KVANT_ASSIGN(out, node.string());
    return {};
  }
  KVANT_ASSIGN(const std::vector<JsonNode> elements, node.elements());
  for (const JsonNode& element : elements) {
    KVANT_ASSIGN(const std::string_view name, element.member("name").string());
    if (name != "default") continue;
    KVANT_ASSIGN(out, element.member("template").string());
  }
  return {};
}

Status read_template_file(const fs::path& path, std::string& out) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error(fmt::format("{}: could not be opened", path.string()));
  out.assign(std::istreambuf_iterator<char>(file), {});
  return {};
}

// Where the configuration says whether BOS and EOS are added, that replaces the post-processor, as
// in Transformers 5.
Status read_added_ends(const JsonNode& config, Description& out) {
  const JsonNode add_bos = config.member("add_bos_token"), add_eos = config.member("add_eos_token");
  if (!add_bos.present() && !add_eos.present()) return {};
  KVANT_ASSIGN(const bool bos, add_bos.boolean_or(false));
  KVANT_ASSIGN(const bool eos, add_eos.boolean_or(false));
  out.prefix.clear();
  out.suffix.clear();
  if (bos && out.bos) out.prefix.push_back(*out.bos);
  if (eos && out.eos) out.suffix.push_back(*out.eos);
  return {};
}

std::optional<int32_t> first_of(const std::vector<int32_t>& ids) {
  return ids.empty() ? std::optional<int32_t>() : std::optional<int32_t>(ids.front());
}

Status read_configuration(const fs::path& directory, Description& out) {
  JsonFile config, generation, model;
  KVANT_TRY(parse_optional(directory / "tokenizer_config.json", config));
  KVANT_TRY(parse_optional(directory / "generation_config.json", generation));
  KVANT_TRY(parse_optional(directory / "config.json", model));
  KVANT_ASSIGN(out.bos, find_special(config.root->member("bos_token"), *out.vocab));
  KVANT_ASSIGN(out.eos, find_special(config.root->member("eos_token"), *out.vocab));
  if (out.eos) out.end_of_generation.push_back(*out.eos);
  std::vector<int32_t> bos;
  for (const JsonFile* file : {&generation, &model}) {
    KVANT_TRY(add_ids(file->root->member("eos_token_id"), *out.vocab, out.end_of_generation));
    KVANT_TRY(add_ids(file->root->member("bos_token_id"), *out.vocab, bos));
  }
  if (!out.bos && !config.root->member("bos_token").present()) out.bos = first_of(bos);
  if (!out.eos) out.eos = first_of(out.end_of_generation);
  append_known_ends(*out.vocab, out.added, out.end_of_generation);
  KVANT_TRY(read_added_ends(*config.root, out));
  KVANT_TRY(read_chat_template(config.root->member("chat_template"), out.chat_template));
  return read_template_file(directory / "chat_template.jinja", out.chat_template);
}

// "Digits, Split, ByteLevel": the types of the pre-tokenizer's steps, for `inspect`.
std::string step_names(const JsonNode& node) {
  const Result<std::vector<JsonNode>> steps = node.member("pretokenizers").elements();
  if (!steps.ok()) {
    const Result<std::string_view> type = node.member("type").string();
    return type.ok() ? std::string(*type) : std::string();
  }
  std::string names;
  for (const JsonNode& step : *steps) names += (names.empty() ? "" : ", ") + step_names(step);
  return names;
}

// No family has more than six steps, nor steps that make a text more than forty times longer. A
// file that piles them up could ask for any time and memory to encode a word.
constexpr size_t kMaxSteps = 64;
constexpr double kMaxGrowth = 1000;

template <typename Steps>
Status check_steps(const JsonNode& node, const Steps& steps, double& growth) {
  if (steps.size() > kMaxSteps) {
    return node.not_supported(
        fmt::format("{} steps; at most {} are supported", steps.size(), kMaxSteps));
  }
  for (const auto& step : steps) growth *= step->growth();
  if (growth <= kMaxGrowth) return {};
  return node.not_supported(fmt::format(
      "a text may become {:.0f} times longer; at most {:.0f} is supported", growth, kMaxGrowth));
}

}  // namespace

Status read_tokenizer_json(const JsonNode& root, Description& out) {
  PreTokenizerEntry pre;
  KVANT_TRY(read_pre_tokenizer(root.member("pre_tokenizer"), pre));
  KVANT_TRY(read_model(root.member("model"),
                       pre.byte_level ? Alphabet::kBytes : Alphabet::kCharacters, out));
  KVANT_TRY(read_added_tokens(root.member("added_tokens"), out));
  KVANT_TRY(read_normalizer(root.member("normalizer"), out.normalizers));
  KVANT_TRY(read_decoder(root.member("decoder"), out.decoders));
  KVANT_TRY(read_post_processor(root.member("post_processor"), out));
  out.pre_tokenizers = std::move(pre.steps);
  double encoded = 1, decoded = 1;
  KVANT_TRY(check_steps(root.member("normalizer"), out.normalizers, encoded));
  KVANT_TRY(check_steps(root.member("pre_tokenizer"), out.pre_tokenizers, encoded));
  KVANT_TRY(check_steps(root.member("decoder"), out.decoders, decoded));
  const std::string names = step_names(root.member("pre_tokenizer"));
  if (!names.empty()) out.summary += ", pre-tokenizer " + names;
  return {};
}

}  // namespace tokenizer

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::filesystem::path& directory) {
  tokenizer::JsonFile file;
  KVANT_TRY(tokenizer::parse_file(directory / "tokenizer.json", file));
  tokenizer::Description description;
  KVANT_TRY(tokenizer::read_tokenizer_json(*file.root, description));
  KVANT_TRY(tokenizer::read_configuration(directory, description));
  return std::unique_ptr<Tokenizer>(std::make_unique<tokenizer::Pipeline>(std::move(description)));
}

}  // namespace kvant
