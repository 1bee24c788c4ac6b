// The page kernels on NEON alone, for AArch64 CPUs without 8-bit dot products.
#define KVANT_ISA neon
#define KVANT_VOCABULARY "simd/neon.h"
#define KVANT_ISA_NAME "neon"
#define KVANT_ISA_VALUE Isa::kNeon

#include "formats/kernels/page_kernels.inc.h"
