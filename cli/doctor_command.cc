// kvant doctor: what this machine and this build are, and which code will run here.

#include <dnnl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ggml.h>

#include <map>
#include <set>
#include <sstream>
#include <string>

#include "cli/command.h"
#include "cli/memory.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "cli/wrap.h"
#include "evaluate/bandwidth.h"
#include "formats/codec.h"
#include "model/ggml_cpu.h"
#include "simd/cpu.h"

namespace kvant::cli {
namespace {

constexpr int kDims[] = {64, 128};  // head sizes at which kernels are shown
constexpr int kBandwidthRounds = 5;

// Kernel → formats that run it, over both sides.
std::map<std::string, std::string> kernels() {
  std::map<std::string, std::string> out;
  for (const FormatInfo& format : all_formats()) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      for (int dim : kDims) {
        const Result<std::unique_ptr<Codec>> codec = bind_any(format, side, dim);
        if (!codec.ok()) continue;
        std::string& names = out[(*codec)->kernel_name()];
        if ((" " + names + " ").find(" " + format.name + " ") == std::string::npos) {
          names += (names.empty() ? "" : " ") + format.name;
        }
      }
    }
  }
  return out;
}

double measured_bandwidth(const Settings& settings) {
  ThreadPool threads(num_threads(settings));
  BandwidthMeter meter(threads);
  double best = 0;
  for (int round = 0; round < kBandwidthRounds; ++round) best = std::max(best, meter.measure());
  return best;
}

Json facts(const Settings& settings) {
  const dnnl_version_t* dnnl = dnnl_version();
  const Status ggml = load_ggml_cpu();
  Json isas = Json::array(), kernel_list = Json::object();
  for (Isa isa : supported_isas()) isas.push_back(isa_name(isa));
  for (const auto& [kernel, formats] : kernels()) kernel_list[kernel] = formats;
  return {{"kvant", KVANT_VERSION},
          {"compiler", __VERSION__},
          {"ggml", ggml_version()},
          {"ggml_cpu", ggml.ok() ? std::string(ggml_cpu_variant()) : ggml.message()},
          {"onednn", fmt::format("{}.{}.{}", dnnl->major, dnnl->minor, dnnl->patch)},
          {"cpu", cpu_description()},
          {"isa", isa_name(active_isa())},
          {"isas_supported", isas},
          {"bf16_dense", cpu_has_bf16()},
          {"threads", num_threads(settings)},
          {"memory_bytes", total_memory()},
          {"memory_available_bytes", available_memory()},
          {"read_bandwidth", measured_bandwidth(settings)},
          {"kernels", kernel_list}};
}

// "int8_token/avx2+hadamard" of the format int8_token_rot: avx2 reads formats of the kind int8. In
// the order of the registry.
std::map<std::string, std::vector<std::string>> kinds_by_code(const Json& kernels) {
  std::map<std::string, std::set<std::string>> formats_of;
  for (const auto& [kernel, list] : kernels.items()) {
    const size_t slash = kernel.find('/');
    std::istringstream names(list.get<std::string>());
    const std::string code = kernel.substr(slash + 1, kernel.find('+') - slash - 1);
    for (std::string name; names >> name;) formats_of[code].insert(name);
  }
  std::map<std::string, std::vector<std::string>> out;
  for (const FormatInfo& format : all_formats()) {
    const std::string kind = format.name.substr(0, format.name.find('_'));
    for (const auto& [code, formats] : formats_of) {
      std::vector<std::string>& kinds = out[code];
      if (formats.contains(format.name) && (kinds.empty() || kinds.back() != kind))
        kinds.push_back(kind);
    }
  }
  return out;
}

std::string render(const Json& f) {
  const auto text = [&](const char* key) { return f[key].get<std::string>(); };
  std::string isas;
  for (const Json& isa : f["isas_supported"]) isas += " " + isa.get<std::string>();
  std::string out = fmt::format("kvant      {} (compiler {})\n", text("kvant"), text("compiler"));
  out += fmt::format("ggml       {}, CPU library {}\n", text("ggml"), text("ggml_cpu"));
  out += fmt::format("oneDNN     {}, full prompt blocks in {}\n", text("onednn"),
                     f["bf16_dense"].get<bool>() ? "bf16" : "f32");
  out += fmt::format("CPU        {}\n", text("cpu"));
  out += fmt::format("attention  {} (supported:{}; KVANT_FORCE_ISA chooses)\n", text("isa"), isas);
  out += fmt::format("threads    {}\n", f["threads"].get<int>());
  out += fmt::format("memory     {}, {} available\n", human_bytes(f["memory_bytes"].get<double>()),
                     human_bytes(f["memory_available_bytes"].get<double>()));
  out += fmt::format("bandwidth  {}/s read by all threads\n",
                     human_bytes(f["read_bandwidth"].get<double>()));
  out += "kernels    the code that reads each kind of format (kvant formats has every name)\n";
  for (const auto& [code, kinds] : kinds_by_code(f["kernels"])) {
    out += fmt::format("  {:<11}  ", code);
    append_wrapped(out, fmt::format("{}", fmt::join(kinds, " ")), 15);
  }
  return out;
}

}  // namespace

Status run_doctor(const Invocation& in) {
  const Json f = facts(in.settings);
  if (!in.settings.json.empty()) KVANT_TRY(write_json(in.settings.json, f));
  return takes_output(in.settings.json) ? Status() : write_text("-", render(f));
}

}  // namespace kvant::cli
