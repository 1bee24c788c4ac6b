// A model is a decoder and the tokenizer beside it.
#include "model/model.h"

#include "model/open_decoder.h"

namespace kvant {
namespace {

class LoadedModel final : public Model {
 public:
  LoadedModel(std::unique_ptr<Decoder> decoder, std::unique_ptr<Tokenizer> tokenizer)
      : decoder_(std::move(decoder)), tokenizer_(std::move(tokenizer)) {}

  const ModelInfo& info() const override { return decoder_->info(); }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  Status forward(KvCache& cache, std::span<const ForwardItem> items, float* hidden) override {
    return decoder_->forward(cache, items, hidden);
  }
  Status logits(const float* hidden, int num_rows, Dense dense, float* out) override {
    return decoder_->logits(hidden, num_rows, dense, out);
  }

 private:
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// Stands where a directory has no tokenizer.json: token ids still work.
class NoTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view, SpecialTokens) const override { return {}; }
  std::string decode(std::span<const int32_t>, bool) const override { return {}; }
  std::string token_bytes(int32_t, bool) const override { return {}; }
  std::string_view piece(int32_t) const override { return {}; }
  bool is_special(int32_t) const override { return false; }
  int vocab_size() const override { return 0; }
  std::optional<int32_t> bos() const override { return std::nullopt; }
  std::optional<int32_t> eos() const override { return std::nullopt; }
  std::span<const int32_t> end_of_generation() const override { return {}; }
  std::string_view chat_template() const override { return {}; }
  std::string description() const override { return "none (tokenizer.json is missing)"; }
};

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory / "tokenizer.json", ignored)) {
    return std::unique_ptr<Tokenizer>(std::make_unique<NoTokenizer>());
  }
  return Tokenizer::load(directory);
}

}  // namespace

Result<std::unique_ptr<Model>> Model::load(const std::filesystem::path& path,
                                           const ModelOptions& options, ThreadPool& threads) {
  KVANT_ASSIGN(OpenDecoder opened, open_decoder(path, options, threads));
  KVANT_ASSIGN(auto tokenizer, opened.gguf ? Tokenizer::load(*opened.gguf) : load_tokenizer(path));
  return std::unique_ptr<Model>(
      std::make_unique<LoadedModel>(std::move(opened.decoder), std::move(tokenizer)));
}

}  // namespace kvant
