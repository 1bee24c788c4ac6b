#include "simd/cpu.h"

#include <array>
#include <cstdlib>
#include <fstream>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace kvant {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"scalar", "neon", "avx2", "avx512",
                                                    "avx512_vnni"};
constexpr std::array<Isa, 5> kAll = {Isa::kScalar, Isa::kNeon, Isa::kAvx2, Isa::kAvx512,
                                     Isa::kAvx512Vnni};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool runs(Isa isa) {
  if (isa == Isa::kAvx2) return has_avx2();
  if (isa == Isa::kAvx512) return has_avx512();
  if (isa == Isa::kAvx512Vnni) return has_avx512() && __builtin_cpu_supports("avx512vnni");
  return isa == Isa::kScalar;
}
#elif defined(__aarch64__)
bool runs(Isa isa) { return isa == Isa::kScalar || isa == Isa::kNeon; }
#else
bool runs(Isa isa) { return isa == Isa::kScalar; }
#endif

std::string_view forced_name() {
  const char* value = std::getenv("KVANT_FORCE_ISA");
  return value == nullptr ? "" : value;
}

std::string cpu_info_field(std::string_view field) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(field)) {
      const size_t colon = line.find(':');
      if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
    }
  }
  return {};
}

}  // namespace

std::string_view isa_name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

bool isa_supported(Isa isa) { return runs(isa); }

std::span<const Isa> supported_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> out;
    for (Isa isa : kAll) {
      if (runs(isa)) out.push_back(isa);
    }
    return out;
  }();
  return isas;
}

Status check_isa_override() {
  const std::string_view forced = forced_name();
  if (forced.empty()) return {};
  std::string known;
  for (Isa isa : supported_isas()) {
    if (isa_name(isa) == forced) return {};
    known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  return unsupported("KVANT_FORCE_ISA: '" + std::string(forced) +
                     "' doesn't run here; this CPU has " + known);
}

Isa active_isa() {
  static const Isa active = [] {
    for (Isa isa : supported_isas()) {
      if (isa_name(isa) == forced_name()) return isa;
    }
    return supported_isas().back();
  }();
  return active;
}

bool cpu_has_bf16() {
#if defined(__x86_64__)
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

bool cpu_has_dot_products() {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

std::string cpu_description() {
  std::string model = cpu_info_field("model name");
  if (model.empty()) model = "unknown CPU";
  std::string isas;
  for (Isa isa : supported_isas()) isas += " " + std::string(isa_name(isa));
  return model + ";" + isas + (cpu_has_bf16() ? " bf16" : "") +
         (cpu_has_dot_products() ? " dotprod" : "");
}

}  // namespace kvant
