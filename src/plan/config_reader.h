// ConfigReader: the fields of one decoder's configuration, under every name that families give
// them, within bounds, and with the defaults of the model's class where these hold.
//
// Every message names file, field, the value seen and what was wanted. What is assumed or derived
// becomes a note.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/json.h"
#include "plan/architectures.h"

namespace kvant {

struct Range {
  int64_t low = 0, high = 0;
};

// The cache's own bounds (attention/bound_layers.cc), and others far beyond any model, so that no
// product of fields leaves 64 bits and nothing is allocated for a number that is merely claimed.
inline constexpr Range kLayerRange = {1, 65536};
inline constexpr Range kHeadRange = {1, 4096};
inline constexpr Range kDimRange = {1, 65536};
inline constexpr Range kHiddenRange = {1, 1 << 20};
inline constexpr Range kSmallRange = {1, 1024};  // kernels, factors, periods
inline constexpr Range kWindowRange = {1, 1 << 30};
inline constexpr Range kPositionRange = {1, int64_t{1} << 40};

// Where a decoder's configuration stands: the file itself, or inside a wrapper's.
enum class Place : uint8_t { kTop, kWrapped };

class ConfigReader {
 public:
  // The document and `shape` outlive the reader; shape.architecture is known, notes are appended.
  ConfigReader(JsonObject config, JsonObject root, const Architecture& architecture,
               ModelShape& shape)
      : config_(std::move(config)),
        root_(std::move(root)),
        architecture_(architecture),
        model_type_(shape.architecture),
        notes_(shape.notes),
        head_dim_from_(shape.head_dim_from) {}

  const JsonObject& json() const { return config_; }
  const JsonObject& root() const { return root_; }  // the wrapper's, or the same
  const ClassDefaults& defaults() const { return architecture_.defaults; }
  std::string_view model_type() const { return model_type_; }
  std::string where(std::string_view name) const { return config_.where(name); }
  void note(std::string text) const { notes_.push_back(std::move(text)); }
  void set_head_dim_from(std::string text) const { head_dim_from_ = std::move(text); }
  void note_class_value(std::string_view name, int64_t value) const;
  Place place() const { return place_; }
  void set_place(Place place) { place_ = place; }

  // A field under any of its names, nothing if it is absent or null. corrupt for two names with two
  // values, and outside of `range`.
  Result<std::optional<int64_t>> find(std::string_view name, Range range) const;
  Result<int> require(std::string_view name, Range range) const;
  Result<int> get(std::string_view name, Range range, int fallback) const;
  // The same, with a note where it is absent: `class_value` is what the class has.
  Result<int> get_noted(std::string_view name, Range range, int class_value) const;
  Result<bool> boolean(std::string_view name, bool fallback) const;
  // `value` of the class for an absent field, with a note; nothing if it is 0. Null isn't absent.
  std::optional<int64_t> class_default(std::string_view name, int64_t value) const;
  // The same inside a wrapper only.
  std::optional<int64_t> wrapped_default(std::string_view name, int64_t value) const;
  // Required, but for the class's default inside a wrapper.
  Result<int> size(std::string_view name, Range range, int class_value) const;

  Result<int> num_layers() const;
  Result<int> hidden_size() const;
  // Tokens that a query of a sliding layer sees; 0: none, or switched off. Absent it is the
  // class's.
  Result<int64_t> window() const;
  // Entries that lists per layer may have beyond the layers: of layers that predict further tokens.
  Result<int> extra_layers() const;

 private:
  JsonObject config_, root_;
  const Architecture& architecture_;
  std::string model_type_;
  std::vector<std::string>& notes_;
  std::string& head_dim_from_;
  Place place_ = Place::kTop;
};

// The name under which `config` holds a field; `name` itself if under none. corrupt as find().
Result<std::string_view> field_spelling(const JsonObject& config, std::string_view name);

// The same of one object inside a configuration, under one name.
Result<std::optional<int64_t>> find_integer(const JsonObject& object, std::string_view key,
                                            Range range);
Result<int> require_integer(const JsonObject& object, std::string_view key, Range range);

// "file: field: value, wanted low to high".
Status out_of_range(const std::string& where, int64_t value, Range range);

}  // namespace kvant
