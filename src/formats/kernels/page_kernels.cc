// Chooses the table of an instruction set.
#include "formats/page_kernels.h"

#include <vector>

#include "formats/kernels/tables.h"

#define KVANT_KERNEL_TABLE(name)   \
  namespace kvant::name {          \
  extern const PageKernels kTable; \
  }
#include "kernel_tables.inc"
#undef KVANT_KERNEL_TABLE

namespace kvant {

std::span<const PageKernels* const> runnable_page_kernels() {
  static const std::vector<const PageKernels*> tables = [] {
    std::vector<const PageKernels*> out;
    const auto consider = [&](const PageKernels& table) {
      if (isa_supported(table.isa) && (!table.needs_dot_products || cpu_has_dot_products()))
        out.push_back(&table);
    };
#define KVANT_KERNEL_TABLE(name) consider(name::kTable);
#include "kernel_tables.inc"
#undef KVANT_KERNEL_TABLE
    return out;
  }();
  return tables;
}

const PageKernels& page_kernels(Isa isa) {
  const PageKernels* best = nullptr;
  for (const PageKernels* table : runnable_page_kernels()) {
    if (table->isa == isa) best = table;
  }
  return *best;  // an unsupported `isa` is the caller's error: see the header
}

}  // namespace kvant
