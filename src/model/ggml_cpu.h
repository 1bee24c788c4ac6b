// ggml's arithmetic, called directly: no graph, no back end, no threads of its own. Conversions
// come from its base library, dot products from the variant of its CPU library that fits this CPU
// (or KVANT_FORCE_ISA), loaded at first use.
//
// A dot product is one call on one weight row and one activation row, so no result can depend on
// the batch. Tensor types are ggml_type numbers. Everything may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant {

// How one tensor type is multiplied.
struct DotKernel {
  // out = w · x over n elements: w a weight row, x an activation row in the form that `quantize`
  // makes.
  void (*dot)(int n, float* out, size_t, const void* w, size_t, const void* x, size_t,
              int) = nullptr;
  void (*quantize)(const float* x, void* out, int64_t n) = nullptr;
  uint32_t activation_type = 0;
};

// Loads the CPU library. not_found or unsupported with the folder that was searched.
Status load_ggml_cpu();
// "haswell"; empty before load_ggml_cpu().
std::string_view ggml_cpu_variant();
// REQUIRES load_ggml_cpu() was OK. unsupported if ggml can't multiply this type.
Result<DotKernel> dot_kernel(uint32_t type);
// A function that the CPU library exports, for code that compares with ggml's own graph; nullptr:
// not there.
void* ggml_cpu_symbol(const char* name);

// Bytes of a row of n elements. REQUIRES a known type and n a multiple of its block.
size_t type_row_bytes(uint32_t type, int64_t n);
int64_t type_block(uint32_t type);
std::string type_name(uint32_t type);  // "Q4_1"
bool type_is_known(uint32_t type);     // and can be converted to float

// n elements, n a multiple of the type's block. REQUIRES type_is_known.
void to_floats(uint32_t type, const void* in, float* out, int64_t n);
void from_floats(uint32_t type, const float* in, void* out, int64_t n);

}  // namespace kvant
