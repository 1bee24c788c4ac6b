// Chooses the table of an instruction set.
#include "formats/page_kernels.h"

#include "formats/kernels/tables.h"

namespace kvant {

const PageKernels& page_kernels(Isa) { return scalar::kTable; }

}  // namespace kvant
