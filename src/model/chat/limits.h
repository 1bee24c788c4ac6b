// What a chat template may use. Templates come with model files, which anyone can make: none may
// hang the process, exhaust its memory or its stack. Real templates stay far below every number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant::chat {

inline constexpr size_t kMaxTemplateBytes = 1 << 20;
inline constexpr int kMaxParseDepth = 100;       // of nested expressions and statements
inline constexpr int kMaxEvaluationDepth = 400;  // of expressions and macros under evaluation
inline constexpr int kMaxValueDepth = 100;       // of lists in lists
inline constexpr size_t kMaxValueWeight =
    64 << 20;  // bytes of a value written out: shared parts count each time
inline constexpr size_t kMaxOutputBytes = 64 << 20;
inline constexpr size_t kMaxMessageBytes = 300;
inline constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

}  // namespace kvant::chat
