#include "model/ggml_cpu.h"

#include <dlfcn.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "simd/cpu.h"

namespace kvant {
namespace {

struct CpuLibrary {
  Status status;
  std::string variant;
  void* handle = nullptr;
  decltype(&ggml_get_type_traits_cpu) traits = nullptr;
};

// The variant that computes with an instruction set that was forced below the CPU's best.
struct Forced {
  Isa isa;
  std::string_view variant;
};
constexpr Forced kForced[] = {
    {Isa::kScalar, "x64"}, {Isa::kAvx2, "haswell"}, {Isa::kAvx512, "skylakex"}};

std::string_view forced_variant() {
  if (active_isa() == supported_isas().back()) return {};
  for (const Forced& forced : kForced) {
    if (forced.isa == active_isa()) return forced.variant;
  }
  return {};
}

std::filesystem::path library_folder() {
  const char* folder = std::getenv("KVANT_GGML_DIR");
  return folder != nullptr && *folder != '\0' ? folder : KVANT_GGML_LIB_DIR;
}

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

// 0: this CPU can't run it.
int score_of(void* library) {
  const auto score = symbol<int (*)()>(library, "ggml_backend_score");
  return score == nullptr ? 1 : score();
}

constexpr std::string_view kPrefix = "libggml-cpu";

// "libggml-cpu-haswell.so" → "haswell"; a library without variants is "generic".
std::string variant_of(const std::filesystem::path& file) {
  std::string stem = file.stem().string().substr(kPrefix.size());
  return stem.empty() ? "generic" : stem.substr(1);
}

// The best library in the folder, opened; nullptr if there is none.
void* open_best(const std::filesystem::path& folder, std::string& variant) {
  void* best = nullptr;
  int best_score = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::filesystem::path& file = entry.path();
    if (!file.filename().string().starts_with(kPrefix) || file.extension() != ".so") continue;
    if (!forced_variant().empty() && variant_of(file) != forced_variant()) continue;
    void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    const int score = score_of(library);
    if (score > best_score) {
      if (best != nullptr) ::dlclose(best);
      best = library;
      best_score = score;
      variant = variant_of(file);
    } else {
      ::dlclose(library);
    }
  }
  return best;
}

CpuLibrary open_library() {
  CpuLibrary out;
  const std::filesystem::path folder = library_folder();
  void* library = open_best(folder, out.variant);
  out.handle = library;
  if (library == nullptr) {
    out.status = not_found(
        folder.string() + ": no libggml-cpu-" +
        (forced_variant().empty() ? "*" : std::string(forced_variant())) +
        ".so that this CPU runs; tools/setup.sh builds them, KVANT_GGML_DIR names another folder");
    return out;
  }
  out.traits = symbol<decltype(&ggml_get_type_traits_cpu)>(library, "ggml_get_type_traits_cpu");
  const auto init = symbol<decltype(&ggml_cpu_init)>(library, "ggml_cpu_init");
  if (out.traits == nullptr || init == nullptr) {
    out.status = unsupported(folder.string() + ": libggml-cpu-" + out.variant +
                             " lacks ggml_get_type_traits_cpu; wanted ggml 0.15");
    return out;
  }
  init();
  return out;
}

const CpuLibrary& cpu_library() {
  static const CpuLibrary library = open_library();
  return library;
}

const ggml_type_traits& traits_of(uint32_t type) {
  return *ggml_get_type_traits(static_cast<ggml_type>(type));
}

}  // namespace

Status load_ggml_cpu() { return cpu_library().status; }
std::string_view ggml_cpu_variant() { return cpu_library().variant; }
void* ggml_cpu_symbol(const char* name) {
  void* handle = cpu_library().handle;
  return handle == nullptr ? nullptr : ::dlsym(handle, name);
}

Result<DotKernel> dot_kernel(uint32_t type) {
  const ggml_type_traits_cpu* traits = cpu_library().traits(static_cast<ggml_type>(type));
  const ggml_type_traits_cpu* activation = cpu_library().traits(traits->vec_dot_type);
  if (traits->vec_dot == nullptr || activation->from_float == nullptr) {
    return unsupported(type_name(type) + ": ggml has no dot product for this type");
  }
  return DotKernel{traits->vec_dot, activation->from_float,
                   static_cast<uint32_t>(traits->vec_dot_type)};
}

size_t type_row_bytes(uint32_t type, int64_t n) {
  return ggml_row_size(static_cast<ggml_type>(type), n);
}
int64_t type_block(uint32_t type) { return traits_of(type).blck_size; }

std::string type_name(uint32_t type) {
  std::string name = type < GGML_TYPE_COUNT ? traits_of(type).type_name : "unknown";
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

bool type_is_known(uint32_t type) {
  if (type >= GGML_TYPE_COUNT) return false;
  return type == GGML_TYPE_F32 || traits_of(type).to_float != nullptr;
}

void to_floats(uint32_t type, const void* in, float* out, int64_t n) {
  if (type == GGML_TYPE_F32) {
    std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
  } else {
    traits_of(type).to_float(in, out, n);
  }
}

void from_floats(uint32_t type, const float* in, void* out, int64_t n) {
  ggml_quantize_chunk(static_cast<ggml_type>(type), in, out, 0, 1, n, nullptr);
}

}  // namespace kvant
