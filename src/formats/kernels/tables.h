// The tables that this build has, one per source file of kernels/. Every file compiled for an
// instruction set of its own puts all it defines into that set's namespace: a shared inline
// function compiled with AVX-512 flags could otherwise be the copy that the linker keeps for
// everybody.
#pragma once

#include "formats/page_kernels.h"

namespace kvant::scalar {
extern const PageKernels kTable;
}
