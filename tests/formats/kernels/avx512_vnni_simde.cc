// The page kernels of kernels/avx512_vnni.cc, compiled against SIMDe: what runs is the same source
// on emulated intrinsics.
#define KVANT_INLINE [[maybe_unused]] static
#define KVANT_INLINE_LAMBDA
#define KVANT_ISA avx512_vnni_simde
#define KVANT_VOCABULARY "simd/avx512.h"
#define KVANT_VNNI
#define KVANT_ISA_NAME "avx512_vnni_simde"
#define KVANT_ISA_VALUE Isa::kAvx512Vnni

#include "formats/kernels/page_kernels.inc.h"
