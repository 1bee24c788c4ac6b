#include "calibrate/documents.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/rng.h"
#include "files/digest.h"
#include "files/json.h"

namespace kvant {
namespace {

constexpr size_t kLongestLine = size_t{64} << 20;

// Cuts between characters of UTF-8.
void shorten(std::string& text, size_t bytes) {
  if (text.size() <= bytes) return;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  text.resize(bytes);
}

Result<Document> parse_line(const std::string& line, const std::string& place) {
  KVANT_ASSIGN(const JsonDocument json, JsonDocument::parse(line, place));
  Document document{.text = {}, .messages = {}, .place = place};
  KVANT_ASSIGN(const std::optional<std::string> text, json.root().string("text"));
  KVANT_ASSIGN(const auto messages, json.root().objects("messages"));
  if (text.has_value() == messages.has_value()) {
    return corrupt(place + ": wanted an object with either \"text\" or \"messages\"");
  }
  if (text) {
    document.text = *text;
    return document;
  }
  for (const JsonObject& message : *messages) {
    KVANT_ASSIGN(const std::optional<std::string> role, message.string("role"));
    KVANT_ASSIGN(const std::optional<std::string> content, message.string("content"));
    if (!role || !content) return corrupt(message.where(role ? "content" : "role") + " is missing");
    document.messages.push_back({.role = *role, .content = *content});
  }
  if (document.messages.empty()) return corrupt(place + ": \"messages\" is empty");
  return document;
}

// Keeps a uniform sample of what passes.
class Reservoir {
 public:
  Reservoir(int64_t size, uint64_t seed) : size_(static_cast<size_t>(size)), rng_(seed) {}

  void pass(Document document) {
    const auto number = static_cast<uint64_t>(seen_++);
    if (kept_.size() < size_) {
      kept_.emplace_back(number, std::move(document));
      return;
    }
    const uint64_t at = rng_.below(number + 1);
    if (at < size_) kept_[at] = {number, std::move(document)};
  }

  int64_t seen() const { return seen_; }
  std::vector<Document> take() {
    std::sort(kept_.begin(), kept_.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Document> out;
    for (auto& [number, document] : kept_) out.push_back(std::move(document));
    return out;
  }

 private:
  size_t size_;
  Rng rng_;
  int64_t seen_ = 0;
  std::vector<std::pair<uint64_t, Document>> kept_;
};

Status too_long(const std::string& place) {
  return corrupt(place + " is longer than " + std::to_string(kLongestLine >> 20) + " MB");
}

// The next line, without its end; false at the end of the file.
Result<bool> next_line(std::istream& in, const std::string& place, std::string& line) {
  line.clear();
  char buffer[1 << 16];
  while (in.getline(buffer, sizeof buffer) || in.gcount() > 0) {
    const bool ended = !in.fail() && !in.eof();  // the line's end was read and is counted
    line.append(buffer, static_cast<size_t>(in.gcount()) - (ended ? 1 : 0));
    if (line.size() > kLongestLine) return too_long(place);
    if (!in.fail()) return true;  // the line's end was reached
    if (in.eof()) return true;
    in.clear(in.rdstate() & ~std::ios::failbit);
  }
  return !line.empty();
}

Status read_jsonl(std::istream& in, const std::string& path, const DocumentRequest& request,
                  Reservoir& reservoir, int64_t& skipped) {
  std::string line;
  for (int64_t number = 1;; ++number) {
    const std::string place = path + ": line " + std::to_string(number);
    KVANT_ASSIGN(const bool more, next_line(in, place, line));
    if (!more) return {};
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    Result<Document> document = parse_line(line, place);
    if (!document.ok()) {
      if (!request.skip_bad) return document.status();
      ++skipped;
      continue;
    }
    shorten(document->text, request.max_bytes);
    reservoir.pass(*std::move(document));
  }
}

// Lines are gathered to documents of up to max_bytes.
Status read_text(std::istream& in, const std::string& path, const DocumentRequest& request,
                 Reservoir& reservoir) {
  Document document;
  std::string line;
  const auto finish = [&](int64_t next) {
    if (document.text.find_first_not_of(" \t\r\n") != std::string::npos)
      reservoir.pass(std::move(document));
    document = {.text = {}, .messages = {}, .place = path + ": line " + std::to_string(next)};
  };
  finish(1);
  for (int64_t number = 1;; ++number) {
    KVANT_ASSIGN(const bool more, next_line(in, path + ": line " + std::to_string(number), line));
    if (!more) break;
    if (document.text.size() + line.size() > request.max_bytes) finish(number);
    document.text += line + "\n";
    while (document.text.size() > request.max_bytes) {  // one line that is longer
      std::string rest = document.text;
      shorten(document.text, request.max_bytes);
      rest.erase(0, std::max<size_t>(document.text.size(), 1));
      finish(number);
      document.text = std::move(rest);
    }
  }
  finish(0);
  return {};
}

std::string digest_of(const std::vector<Document>& documents) {
  Digest digest;
  const auto add = [&](const std::string& text) {
    digest.add(uint64_t{text.size()});
    digest.add(text);
  };
  for (const Document& document : documents) {
    add(document.text);
    for (const ChatMessage& message : document.messages) add(message.role), add(message.content);
  }
  return digest.hex();
}

}  // namespace

Result<Documents> sample_documents(const DocumentRequest& request) {
  Reservoir reservoir(request.samples, request.seed);
  Documents out;
  for (const std::string& path : request.paths) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error))
      return invalid_argument(path + " is a directory, wanted a file");
    std::ifstream in(path, std::ios::binary);
    if (!in) return not_found(path + " can't be read");
    const int64_t before = reservoir.seen();
    const bool is_jsonl = std::filesystem::path(path).extension() == ".jsonl";
    KVANT_TRY(is_jsonl ? read_jsonl(in, path, request, reservoir, out.skipped)
                       : read_text(in, path, request, reservoir));
    if (in.bad()) return io_error(path + " can't be read to its end");
    if (reservoir.seen() == before)
      return invalid_argument(path + " holds no document" +
                              (out.skipped > 0 ? ": every line was skipped" : ""));
  }
  out.seen = reservoir.seen();
  out.sample = reservoir.take();
  out.digest = digest_of(out.sample);
  return out;
}

}  // namespace kvant
