// The tables that this build has, one per source file of kernels/. Every file compiled for an
// instruction set of its own puts all it defines into a namespace of its own: a shared inline
// function compiled with AVX-512 flags could otherwise be the copy that the linker keeps for
// everybody (tests/formats/kernels/isa_symbols.py).
#pragma once

#include <span>

#include "formats/page_kernels.h"

namespace kvant {

// Every table that this CPU runs, from the least to the most preferred; one instruction set may
// have several.
std::span<const PageKernels* const> runnable_page_kernels();

}  // namespace kvant
