// The page kernels on AVX2, FMA and F16C.
#define KVANT_ISA avx2
#define KVANT_VOCABULARY "simd/avx2.h"
#define KVANT_ISA_NAME "avx2"
#define KVANT_ISA_VALUE Isa::kAvx2

#include "formats/kernels/page_kernels.inc.h"
