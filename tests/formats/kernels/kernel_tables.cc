#include "kernel_tables.h"

#include "formats/kernels/tables.h"

#define KVANT_EMULATED_TABLE(name) \
  namespace kvant::name {          \
  extern const PageKernels kTable; \
  }
#include "emulated_tables.inc"
#undef KVANT_EMULATED_TABLE

namespace kvant::test {

std::vector<const PageKernels*> vector_tables() {
  std::vector<const PageKernels*> out;
  for (const PageKernels* table : runnable_page_kernels()) {
    if (table->isa != Isa::kScalar) out.push_back(table);
  }
#define KVANT_EMULATED_TABLE(name) out.push_back(&name::kTable);
#include "emulated_tables.inc"
#undef KVANT_EMULATED_TABLE
  return out;
}

}  // namespace kvant::test
