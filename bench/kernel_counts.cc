// Runs one page kernel once, on fixed inputs, for callgrind to count its instructions:
// kvant_kernel_counts NAME; without a name, all names. The result is compared with the scalar
// kernel by bits first, outside of what is counted: tools/check_instruction_counts.py has callgrind
// collect inside kvant_counted_call alone.
//
// Time on shared machines says little about a small step back; the number of instructions repeats
// to the digit. It is the gate of CI, on AVX2, because valgrind hides AVX-512.
#include <cstdio>
#include <string_view>

#include "page_case.h"
#include "simd/cpu.h"

namespace kvant {
namespace {

// One of each way through the kernels: scales per channel and per token, K and V, codes of one
// plane and of a narrow one, floats.
constexpr PageDesc kCounted[] = {
    {true, "int8_channel", PageKind::kInt, 8, ScaleLayout::kChannel},
    {false, "int8_token", PageKind::kInt, 8},
    {true, "int4_token_z", PageKind::kInt, 4, ScaleLayout::kToken, 0, true},
    {false, "int2_token_z", PageKind::kInt, 2, ScaleLayout::kToken, 0, true},
    {true, "bf16", PageKind::kFloat, 16, ScaleLayout::kPage, 0, false, FloatType::kBf16},
};
constexpr int kDim = 128;    // of Llama's heads,
constexpr int kQueries = 4;  // which share a KV head by four: one token's decoding

// The pages that a call reads, as in a sequence of 1,024 tokens: what is done once per call or page
// weighs as it does in use.
constexpr size_t kPages = 16;

}  // namespace

// Found by name: neither inlined nor copied.
extern "C" __attribute__((noinline, noclone, used)) void kvant_counted_call(PageCase& page_case,
                                                                            const uint8_t* pages) {
  for (size_t i = 0; i < kPages; ++i) page_case.run(pages + i * page_case.page_bytes());
}

namespace {

int run(std::string_view wanted) {
  const PageKernels& table = page_kernels(active_isa());
  for (const PageDesc& desc : kCounted) {
    const std::string name = case_name(table, desc, kDim, kQueries);
    if (wanted.empty()) std::puts(name.c_str());
    if (name != wanted) continue;
    PageCase page_case(table, desc, kDim, kQueries);
    const AlignedArray<uint8_t> pages = random_pages(kPages * page_case.page_bytes());
    for (size_t i = 0; i < kPages; ++i) {
      if (agrees_with_scalar(table, desc, kDim, kQueries,
                             pages.data() + i * page_case.page_bytes()))
        continue;
      std::fprintf(stderr, "%s differs from the scalar kernel\n", name.c_str());
      return 1;
    }
    kvant_counted_call(page_case, pages.data());
    return 0;
  }
  if (!wanted.empty()) std::fprintf(stderr, "no such kernel; without a name, all are listed\n");
  return wanted.empty() ? 0 : 2;
}

}  // namespace
}  // namespace kvant

int main(int argc, char** argv) {
  const kvant::Status status = kvant::check_isa_override();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? kvant::run(argc > 1 ? argv[1] : "") : 2;
}
