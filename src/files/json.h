// JSON configuration files (config.json, tokenizer_config.json, index files), read with a complaint
// for every field that isn't what it should be. For documents of megabytes use simdjson; this is
// for the small ones.
//
// A field that is absent or null gives nothing; a field of another type is an error that names file
// and field. Nesting is limited, and no exception leaves this file. NaN and Infinity, which Python
// writes and JSON doesn't have, are values that are no number: only who asks for them complains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant {

// An object of a document; cheap to copy, valid while its JsonDocument lives.
class JsonObject {
 public:
  // True if the field is there and not null.
  bool has(std::string_view key) const;
  // True if the field is there and null.
  bool is_null(std::string_view key) const;
  bool is_string(std::string_view key) const;
  bool is_list(std::string_view key) const;
  std::vector<std::string> keys() const;

  // Integers may be written as 1e3 or 16.0, never as "16".
  Result<std::optional<int64_t>> integer(std::string_view key) const;
  Result<std::optional<double>> number(std::string_view key) const;  // finite
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string>> string(std::string_view key) const;
  Result<std::optional<JsonObject>> object(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> integers(std::string_view key) const;
  Result<std::optional<std::vector<double>>> numbers(std::string_view key) const;
  Result<std::optional<std::vector<std::string>>> strings(std::string_view key) const;
  Result<std::optional<std::vector<JsonObject>>> objects(std::string_view key) const;

  // "model/config.json: rope_scaling.factor": how messages about a field begin.
  std::string where(std::string_view key) const;

 private:
  friend class JsonDocument;
  JsonObject(const void* node, std::string prefix) : node_(node), prefix_(std::move(prefix)) {}

  const void* node_;    // a nlohmann::json object inside the document
  std::string prefix_;  // file and path of this object
};

class JsonDocument {
 public:
  static constexpr int kMaxDepth = 64;
  static constexpr uint64_t kMaxBytes = 64 << 20;

  // corrupt if the file isn't JSON, nests too deeply, is too long, or isn't an object at the top.
  static Result<JsonDocument> open(const std::filesystem::path& path);
  // The same for text in memory; `name` stands for the file in messages.
  static Result<JsonDocument> parse(std::string_view text, std::string_view name);

  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonObject root() const;

 private:
  struct Tree;
  JsonDocument(std::unique_ptr<Tree> tree, std::string name);

  std::unique_ptr<Tree> tree_;
  std::string name_;
};

}  // namespace kvant
