#include <utility>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/steps.h"

namespace kvant::tokenizer {
namespace {

class ByteLevel final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (std::string& token : tokens) {
      apply_one(token, false);
      bytes += token;
    }
    tokens.assign(1, repair_utf8(bytes));
  }
  // A token with a character outside the alphabet (an added one) stands for its own bytes.
  void apply_one(std::string& token, bool) const override {
    std::string bytes;
    if (unspell_bytes(token, bytes)) token = std::move(bytes);
  }
};

class Metaspace final : public Decoder {
 public:
  Metaspace(std::string replacement, PrependScheme scheme)
      : replacement_(std::move(replacement)), scheme_(scheme) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) apply_one(tokens[i], i == 0);
  }
  void apply_one(std::string& token, bool first) const override {
    const std::string_view mark = first && scheme_ != PrependScheme::kNever ? "" : " ";
    std::string out;
    for (size_t pos = 0; pos < token.size();) {
      if (std::string_view(token).substr(pos).starts_with(replacement_)) {
        out += mark;
        pos += replacement_.size();
      } else {
        out += token[pos++];
      }
    }
    token = std::move(out);
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
};

class ByteFallback final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string run;  // bytes of the byte tokens in a row
    for (std::string& token : tokens) {
      const int byte = byte_token_value(token);
      if (byte >= 0) {
        run += static_cast<char>(byte);
        continue;
      }
      end_run(run, out);
      out.push_back(std::move(token));
    }
    end_run(run, out);
    tokens = std::move(out);
  }
  void apply_one(std::string& token, bool) const override {
    const int byte = byte_token_value(token);
    if (byte >= 0) token.assign(1, static_cast<char>(byte));
  }

 private:
  // A run that isn't UTF-8 as a whole becomes one replacement mark a byte: so does the reference.
  static void end_run(std::string& run, std::vector<std::string>& out) {
    if (run.empty()) return;
    if (is_valid_utf8(run)) {
      out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), std::string(kReplacement));
    }
    run.clear();
  }
};

class Fuse final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens.assign(1, std::move(all));
  }
  void apply_one(std::string&, bool) const override {}
  bool fuses() const override { return true; }
};

class Strip final : public Decoder {
 public:
  Strip(std::string content, size_t left, size_t right, StripScope scope)
      : content_(std::move(content)), left_(left), right_(right), scope_(scope) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) strip(token, left_, right_);
  }
  // The end of the whole text isn't known while it streams: only its start is stripped.
  void apply_one(std::string& token, bool first) const override {
    if (scope_ == StripScope::kEachToken) {
      strip(token, left_, right_);
    } else if (first) {
      strip(token, left_, 0);
    }
  }

 private:
  void strip(std::string& token, size_t left, size_t right) const {
    std::string_view text = token;
    for (size_t i = 0; i < left && text.starts_with(content_); ++i)
      text.remove_prefix(content_.size());
    for (size_t i = 0; i < right && text.ends_with(content_); ++i)
      text.remove_suffix(content_.size());
    token = std::string(text);
  }

  std::string content_;
  size_t left_;
  size_t right_;
  StripScope scope_;
};

class Replace final : public Decoder {
 public:
  Replace(std::unique_ptr<Regex> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) token = replace_all(token, *pattern_, content_);
  }
  void apply_one(std::string& token, bool) const override {
    if (is_valid_utf8(token)) token = replace_all(token, *pattern_, content_);
  }
  double growth() const override { return replace_growth(*pattern_, content_); }

 private:
  std::unique_ptr<Regex> pattern_;
  std::string content_;
};

}  // namespace

std::unique_ptr<Decoder> make_byte_level_decoder() { return std::make_unique<ByteLevel>(); }
std::unique_ptr<Decoder> make_metaspace_decoder(std::string replacement, PrependScheme scheme) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme);
}
std::unique_ptr<Decoder> make_byte_fallback_decoder() { return std::make_unique<ByteFallback>(); }
std::unique_ptr<Decoder> make_fuse_decoder() { return std::make_unique<Fuse>(); }
std::unique_ptr<Decoder> make_strip_decoder(std::string content, size_t left, size_t right,
                                            StripScope scope) {
  return std::make_unique<Strip>(std::move(content), left, right, scope);
}
std::unique_ptr<Decoder> make_replace_decoder(std::unique_ptr<Regex> pattern, std::string content) {
  return std::make_unique<Replace>(std::move(pattern), std::move(content));
}

}  // namespace kvant::tokenizer
