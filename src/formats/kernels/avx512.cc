// The page kernels on AVX-512 (F, BW, DQ, VL) without VNNI.
#define KVANT_ISA avx512
#define KVANT_VOCABULARY "simd/avx512.h"
#define KVANT_ISA_NAME "avx512"
#define KVANT_ISA_VALUE Isa::kAvx512

#include "formats/kernels/page_kernels.inc.h"
