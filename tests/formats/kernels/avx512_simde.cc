// The page kernels of kernels/avx512.cc, compiled against SIMDe: what runs is the same source on
// emulated intrinsics.
#define KVANT_INLINE [[maybe_unused]] static
#define KVANT_INLINE_LAMBDA
#define KVANT_ISA avx512_simde
#define KVANT_VOCABULARY "simd/avx512.h"
#define KVANT_ISA_NAME "avx512_simde"
#define KVANT_ISA_VALUE Isa::kAvx512

#include "formats/kernels/page_kernels.inc.h"
