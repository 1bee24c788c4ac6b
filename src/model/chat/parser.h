// Parser of chat templates.
#pragma once

#include <string_view>

#include "kvant/status.h"
#include "model/chat/ast.h"

namespace kvant::chat {

// The template as one kBlock; corrupt with line and construct where it is outside the supported
// subset of Jinja: no inheritance, imports, recursive loops, or autoescape.
Result<NodePtr> parse(std::string_view source);

}  // namespace kvant::chat
