// How every function of a vector vocabulary is declared: inlined always, and private to the source
// file that includes it, so that no copy compiled with one instruction set's flags can serve
// another file. (A build that emulates the intrinsics by calls defines these itself: inlining all
// of that takes the compiler minutes.)
#pragma once

#ifndef KVANT_INLINE
#define KVANT_INLINE [[maybe_unused]] static inline __attribute__((always_inline))
#define KVANT_INLINE_LAMBDA __attribute__((always_inline))
#endif
