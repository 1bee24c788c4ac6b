// Evaluator: runs a chat template's tree over values, within limits.h. One render, one thread.
//
// Errors are sticky: the first one is kept, everything after it returns at once with an undefined
// value, and run() reports it. So the many small functions below return values and not results.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat/ast.h"
#include "model/chat/value.h"

namespace kvant::chat {

class Evaluator {
 public:
  using Variables = std::vector<std::pair<std::string, Value>>;
  // `now`: what strftime_now() prints. `max_work`: one for each step, and one for every 4 bytes
  // that a step reads or makes.
  Evaluator(std::time_t now, int64_t max_work) : now_(now), max_work_(max_work) {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  ~Evaluator();

  // The text of `root` with `variables` as globals. Once for each evaluator.
  Result<std::string> run(const Node& root, Variables variables);

  // ---- What filters, tests, methods and functions use
  bool failed() const { return !status_.ok(); }
  // Keeps the first error and returns an undefined value. The template's mistake, with its line.
  Value fail(std::string_view message);
  // As it is: what the template itself raises.
  Value fail_with(Status status);
  // Counts a step that reads or makes `bytes`; false if the template has used up its work.
  bool charge(size_t bytes);
  // Counts what any filter, test or function reads at least: a level of each argument.
  bool charge(const Value& operand, const Arguments& arguments);
  // Fails and returns false for an undefined value.
  bool require_defined(const Value& value);

  Value call(const Value& callee, Arguments& arguments);
  Value filter(std::string_view name, const Value& operand, Arguments& arguments);
  bool test(std::string_view name, const Value& operand, Arguments& arguments);
  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  // What a loop over the value goes through.
  std::vector<Value> iterate(const Value& value);
  bool contains(const Value& container, const Value& value);
  Value add(const Value& left, const Value& right);
  // value, or a failure where it nests too deep or weighs too much.
  Value checked(Value value);
  // str(value), charged.
  std::string text(const Value& value);
  Namespace* make_namespace();
  std::time_t now() const { return now_; }

 private:
  // Variables of one level. Jinja's `if` opens none; loops, macros and `with` do.
  struct Scope {
    Scope* parent = nullptr;
    Variables variables;
    bool captured = false;  // a macro refers to it: it lives until the end
  };
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  Flow execute(const Node& node);
  Flow execute_block(const Node& node);
  Flow execute_if(const Node& node);
  void execute_for(const Node& node);
  void run_loop(const Node& node, const std::vector<Value>& items);
  std::vector<Value> filtered_items(const Node& node, std::vector<Value> items);
  void execute_set(const Node& node);
  void execute_set_block(const Node& node);
  void define_macro(const Node& node);
  void execute_call_block(const Node& node);
  void execute_filter_block(const Node& node);
  Flow execute_with(const Node& node);
  std::string capture(const Node& body);
  void write(std::string_view text);

  Value make_macro(const Node& body, std::string name, const std::vector<std::string>& parameters,
                   const Node* defaults);
  struct Macro;
  Value call_macro(const Macro& macro, Arguments& arguments);

  Value evaluate(const Node& node);
  Value evaluate_now(const Node& node);
  Value evaluate_name(const Node& node);
  Value evaluate_dict(const Node& node);
  Value evaluate_slice(const Node& node);
  Value evaluate_call(const Node& node);
  Value evaluate_filter(const Node& node, const Value* operand);
  Value evaluate_test(const Node& node);
  Value evaluate_unary(const Node& node);
  Value evaluate_binary(const Node& node);
  Value evaluate_concat(const Node& node);
  Value evaluate_compare(const Node& node);
  Value evaluate_conditional(const Node& node);
  std::vector<Value> evaluate_all(const Node& node, size_t first);
  Arguments evaluate_arguments(const Node& node, size_t first);
  bool compare_by(std::string_view op, const Value& left, const Value& right);

  Scope* push_scope(Scope* parent);
  void pop_scope();
  void assign(const std::string& name, Value value);
  void unpack(const std::vector<std::string>& names, const Value& value);

  const std::time_t now_;
  const int64_t max_work_;
  Status status_;
  int64_t work_ = 0;
  int depth_ = 0;
  int line_ = 0;
  std::string* out_ = nullptr;
  Scope* scope_ = nullptr;
  std::vector<std::unique_ptr<Scope>> scopes_;  // live and captured ones
  std::vector<std::unique_ptr<Scope>> free_scopes_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

// ---- Tables of what templates can name. Each returns nullptr for a name it doesn't have.
using Function = Value (*)(Evaluator& e, const Value& self, Arguments& arguments);
Function find_filter(std::string_view name);
Function find_test(std::string_view name);                         // returns a bool
Function find_method(const Value& object, std::string_view name);  // of strings, lists, dicts
Function find_global(std::string_view name);                       // `self` is undefined

// left op right for + - * / // % **.
Value arithmetic(Evaluator& e, std::string_view op, const Value& left, const Value& right);
// value[start:stop:step] as in Python; null for an absent bound.
Value slice(Evaluator& e, const Value& value, const Value* start, const Value* stop,
            const Value* step);
// "…" % value and "…".format(…).
Value format_percent(Evaluator& e, std::string_view format, const Value& value);
Value format_braces(Evaluator& e, std::string_view format, const Arguments& arguments);

}  // namespace kvant::chat
