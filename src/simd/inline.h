// How every function of a vector vocabulary is declared: inlined always, and private to the source
// file that includes it, so that no copy compiled with one instruction set's flags can serve
// another file.
#pragma once

#define KVANT_INLINE [[maybe_unused]] static inline __attribute__((always_inline))
