// The tables under test: all that this CPU runs but the scalar one, and AVX-512 emulated where the
// build has it.
#pragma once

#include <vector>

#include "formats/page_kernels.h"

namespace kvant::test {

std::vector<const PageKernels*> vector_tables();
inline const PageKernels& scalar_table() { return page_kernels(Isa::kScalar); }

}  // namespace kvant::test
