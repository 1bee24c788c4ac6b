// The steps around a tokenizer's model: normalizers before it, pre-tokenizers that cut the text,
// decoders after it.
//
// Each is one object per entry of tokenizer.json; GGUF files name fixed lists of them. What a step
// does is the behaviour of the `tokenizers` library's step of the same name. Immutable; any thread
// may run them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/regex.h"
#include "model/tokenizer/unicode.h"

namespace kvant::tokenizer {

// ---- Normalizers: text to text.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(std::string& text) const = 0;
  // How many times longer it may make a text that isn't empty.
  virtual double growth() const { return 1; }
};
using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

enum class Sides : uint8_t { kNone, kLeft, kRight, kBoth };

std::unique_ptr<Normalizer> make_prepend(std::string prefix);
std::unique_ptr<Normalizer> make_replace(std::unique_ptr<Regex> pattern, std::string content);
std::unique_ptr<Normalizer> make_normal_form(NormalForm form);
std::unique_ptr<Normalizer> make_lowercase();
std::unique_ptr<Normalizer> make_strip(Sides sides);

// ---- Pre-tokenizers: a list of pieces to a list of smaller ones.
struct Piece {
  std::string_view text;
  bool at_start = false;  // the text's first piece: where Metaspace's scheme `first` prepends
};

// Pieces under way, and the memory of those that a step had to rewrite.
struct PieceList {
  std::vector<Piece> pieces;
  std::deque<std::string> owned;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void split(PieceList& list) const = 0;
  virtual double growth() const { return 1; }  // as a normalizer's, over all pieces
};
using PreTokenizers = std::vector<std::unique_ptr<PreTokenizer>>;

enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};
enum class SplitOn : uint8_t { kMatches, kGaps };
enum class PrependScheme : uint8_t { kNever, kFirst, kAlways };
enum class MetaspaceCut : uint8_t { kWhole, kWords };

std::unique_ptr<PreTokenizer> make_split(std::unique_ptr<Regex> pattern, SplitBehavior behavior,
                                         SplitOn on);
std::unique_ptr<PreTokenizer> make_split_chars(bool (*is_delimiter)(char32_t),
                                               SplitBehavior behavior);
std::unique_ptr<PreTokenizer> make_metaspace(std::string replacement, PrependScheme scheme,
                                             MetaspaceCut cut);
std::unique_ptr<PreTokenizer> make_prefix_space();  // ByteLevel's add_prefix_space

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// ---- Decoders: the tokens' texts to fewer, better ones; the answer is what is left, joined.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // The same for one token of a stream, as raw bytes that need not be UTF-8. `first` is true for a
  // stream's first.
  virtual void apply_one(std::string& token, bool first) const = 0;
  virtual bool fuses() const { return false; }  // it is Fuse
  virtual double growth() const { return 1; }   // as a normalizer's, over all tokens
};
using Decoders = std::vector<std::unique_ptr<Decoder>>;

std::unique_ptr<Decoder> make_byte_level_decoder();
std::unique_ptr<Decoder> make_metaspace_decoder(std::string replacement, PrependScheme scheme);
std::unique_ptr<Decoder> make_byte_fallback_decoder();
std::unique_ptr<Decoder> make_fuse_decoder();
// Behind Fuse, Strip sees the whole text and not each token.
enum class StripScope : uint8_t { kEachToken, kWholeText };
std::unique_ptr<Decoder> make_strip_decoder(std::string content, size_t left, size_t right,
                                            StripScope scope);
std::unique_ptr<Decoder> make_replace_decoder(std::unique_ptr<Regex> pattern, std::string content);

// Replaces every match by `content`.
std::string replace_all(std::string_view text, const Regex& pattern, std::string_view content);
double replace_growth(const Regex& pattern, std::string_view content);

}  // namespace kvant::tokenizer
