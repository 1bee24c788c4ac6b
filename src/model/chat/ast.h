// The syntax tree of a chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/chat/value.h"

namespace kvant::chat {

enum class NodeKind : uint8_t {
  // Expressions; children in the order of the comment.
  kConstant,  // value
  kName,      // text
  kList,
  kTuple,      // items
  kDict,       // key, value, key, value, …
  kAttribute,  // object; text
  kIndex,      // object, index
  kSlice,      // object, start, stop, step (each may be null)
  kCall,       // callee, positional…; named
  kFilter,     // operand (null in a filter block), positional…; text, named
  kTest,       // operand, positional…; text, named; negated
  kUnary,      // operand; text is "-", "+" or "not"
  kBinary,     // left, right; text
  kAnd,
  kOr,           // left, right
  kConcat,       // parts
  kCompare,      // first, then one operand for each of `names`, which holds the operators
  kConditional,  // value, condition, other (may be null)
  // Statements.
  kText,       // text
  kOutput,     // expression
  kBlock,      // statements
  kIf,         // condition, body, condition, body, …, [else body]
  kFor,        // iterable, filter (may be null), body, else body (may be null); names: the targets
  kSet,        // value; names: the targets; text: the namespace of an attribute target
  kSetBlock,   // body, filter chain (may be null); names
  kMacro,      // body, default values…; text: name; names: parameters
  kCallBlock,  // call, body; names: the caller's parameters
  kFilterBlock,  // filter chain, body
  kWith,         // body, values…; names
  kBreak,
  kContinue,
};

struct Node;
using NodePtr = std::unique_ptr<Node>;

struct Node {
  NodeKind kind = NodeKind::kBlock;
  int line = 0;
  int depth = 1;  // levels of nodes below and with this one
  std::string text;
  Value value;
  bool negated = false;
  std::vector<NodePtr> children;
  std::vector<std::pair<std::string, NodePtr>> named;
  std::vector<std::string> names;
};

}  // namespace kvant::chat
