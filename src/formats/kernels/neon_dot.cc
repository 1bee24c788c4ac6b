// The page kernels on NEON with 8-bit dot products (sdot).
#define KVANT_ISA neon_dot
#define KVANT_VOCABULARY "simd/neon.h"
#define KVANT_ISA_NAME "neon_dot"
#define KVANT_ISA_VALUE Isa::kNeon

#include "formats/kernels/page_kernels.inc.h"
