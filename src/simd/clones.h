// KVANT_CLONES before a function compiles it once for each of a few instruction sets; the one that
// fits the CPU is picked when the program is loaded. For plain loops that compilers vectorize,
// where a kernel of its own would say nothing more. All clones give the same bits: no multiply-add
// is contracted, so an operation is the same operation in any width. Not under sanitizers, whose
// instrumented code can't run as early as the choice is made.
#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)
#define KVANT_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KVANT_CLONES
#endif
