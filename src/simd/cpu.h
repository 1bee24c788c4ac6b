// Which instruction set this process computes with. Decided once, from the CPU and KVANT_FORCE_ISA.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant {

// In rising order of preference on one architecture. A build knows all of them; a CPU supports
// some.
enum class Isa {
  kScalar,
  kNeon,       // AArch64 with or without dot products (chosen inside)
  kAvx2,       // AVX2, FMA, F16C
  kAvx512,     // AVX-512 F, BW, DQ, VL
  kAvx512Vnni  // the same with VNNI
};

std::string_view isa_name(Isa isa);  // "scalar", "neon", "avx2", "avx512", "avx512_vnni"

// True if this build has code for `isa` and this CPU (and operating system) runs it.
bool isa_supported(Isa isa);

// Every supported instruction set, best last. kScalar is always there.
std::span<const Isa> supported_isas();

// What the process uses: the best supported one, or the one that KVANT_FORCE_ISA names.
// A value of KVANT_FORCE_ISA that isn't known or can't run here is an error, reported by
// check_isa_override(); the program calls that once at its start, and active_isa() then ignores
// such a value.
Isa active_isa();
Status check_isa_override();

// True if the CPU multiplies bfloat16 natively (AVX512_BF16 or AMX): decides the type of many-row
// dense layers.
bool cpu_has_bf16();

// True if an AArch64 CPU has the 8-bit dot products (sdot); false elsewhere.
bool cpu_has_dot_products();

// One line for logs and `doctor`: model name and the feature flags that matter to us.
std::string cpu_description();

}  // namespace kvant
