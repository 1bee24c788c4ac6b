// Value: what a chat template computes with: Python's None, bool, int, float, str, list, tuple,
// dict, and Jinja's own.
//
// Values are immutable and share their parts, so copying one is cheap; only a namespace's members
// can be set, and its members live in the evaluation that made it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "kvant/status.h"

namespace kvant::chat {

class Value;
class Evaluator;

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;      // of lists and dicts in one another, this one counted
  size_t weight = 1;  // bytes of all that is in it, shared parts counted each time
};
struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion
  int depth = 1;
  size_t weight = 1;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  // The one way to add to `items` or to change a value.
  void set(Value key, Value value);

 private:
  size_t index_of(const Value& key) const;  // items.size(): not there
  // Places in `items` by hash_of(key), once there are many: so that a dict of n keys takes about n
  // steps to make and to compare, not n².
  std::unordered_multimap<size_t, size_t> places_;
};
struct Namespace {
  std::map<std::string, Value, std::less<>> members;
};
// The variable `loop`.
struct Loop {
  int64_t index0 = 0;
  std::shared_ptr<const List> list;  // what it goes through
};
struct Arguments;
struct Callable {
  std::string name;
  std::function<Value(Evaluator&, Arguments&)> call;
  int depth = 0;  // of a method: its object's, and one
};
struct Undefined {
  std::string reason;  // "'x' is undefined"
};
struct None {};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(std::shared_ptr<const List> list) : data_(std::move(list)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(Namespace* space) : data_(space) {}
  Value(std::shared_ptr<const Loop> loop) : data_(std::move(loop)) {}
  Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}
  static Value undefined(std::string reason);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const {
    return is_int() || is_float() || is_bool();
  }  // as in Python, a bool is one
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_string() const {
    return std::holds_alternative<std::shared_ptr<const std::string>>(data_);
  }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(data_); }
  bool is_namespace() const { return std::holds_alternative<Namespace*>(data_); }
  bool is_loop() const { return std::holds_alternative<std::shared_ptr<const Loop>>(data_); }
  bool is_callable() const {
    return std::holds_alternative<std::shared_ptr<const Callable>>(data_);
  }
  bool is_sequence() const { return is_string() || is_list() || is_dict(); }

  // REQUIRE the kind.
  const std::string& string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  std::shared_ptr<const List> shared_list() const {
    return std::get<std::shared_ptr<const List>>(data_);
  }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& space() const { return *std::get<Namespace*>(data_); }
  const Loop& loop() const { return *std::get<std::shared_ptr<const Loop>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  int64_t integer() const {
    return is_bool() ? std::get<bool>(data_) : std::get<int64_t>(data_);
  }                       // int or bool
  double number() const;  // any number
  const std::string& reason() const { return std::get<Undefined>(data_).reason; }

  bool truthy() const;
  int depth() const;  // 0 for what holds no values
  size_t weight() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace*,
               std::shared_ptr<const Loop>, std::shared_ptr<const Callable>>
      data_;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  // By position or name; nullptr: not given.
  const Value* find(size_t index, std::string_view name) const;
};

// "str", "dict", "None": as Python names types in its messages.
std::string_view type_name(const Value& value);

bool equal(const Value& a, const Value& b);
// Negative, 0, positive; nothing where Python can't order the two.
std::optional<int> compare(const Value& a, const Value& b);

std::string to_text(const Value& value);  // str(value)
std::string repr(const Value& value);
std::string float_text(double value);

// ---- JSON
struct JsonStyle {
  int indent = -1;  // below 0: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool ascii = false;
};
// json.dumps(value); invalid_argument for what JSON can't hold.
Result<std::string> to_json(const Value& value, const JsonStyle& style);
// corrupt where `text` isn't JSON; `what` names it.
Result<Value> from_json(std::string_view text, std::string_view what);

// Bytes that a step reads when it goes over the value's own level; Value::weight() is for one that
// goes into it.
size_t size_of(const Value& value);

}  // namespace kvant::chat
