// The page kernels on AVX-512 with VNNI.
#define KVANT_ISA avx512_vnni
#define KVANT_VOCABULARY "simd/avx512.h"
#define KVANT_VNNI
#define KVANT_ISA_NAME "avx512_vnni"
#define KVANT_ISA_VALUE Isa::kAvx512Vnni

#include "formats/kernels/page_kernels.inc.h"
