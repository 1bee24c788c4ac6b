#include "cli/sensitivity_file.h"

#include <fmt/format.h>

#include <filesystem>

#include "files/durable_file.h"
#include "files/fingerprint.h"

namespace kvant::cli {
namespace {

bool same_calibration(const SidecarFacts& a, const SidecarFacts& b) {
  return a.model == b.model && a.data == b.data && a.command == b.command;
}

// Refuses what would be lost.
Status check_existing(const Invocation& in, const std::optional<Sidecar>& used,
                      const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  KVANT_ASSIGN(const Sidecar there, Sidecar::open(path));
  KVANT_TRY(there.check_model(in.model));
  if (!there.is_calibration() || (used && same_calibration(used->facts(), there.facts())))
    return {};
  return invalid_argument(fmt::format(
      "--out {}: {} is a calibration that this run doesn't use; wanted --calibration {}, so that "
      "it goes along, or another --out",
      in.settings.out_directory, path.string(), path.string()));
}

}  // namespace

Status SensitivityFile::prepare(const Invocation& in, const OpenModel& open) {
  if (in.settings.out_directory.empty()) return {};
  const std::filesystem::path path =
      std::filesystem::path(in.settings.out_directory) / kSidecarName;
  KVANT_TRY(check_existing(in, open.calibration, path));
  if (open.calibration) contents_ = open.calibration->contents();
  KVANT_ASSIGN(contents_.facts.model, model_fingerprint(in.model));
  KVANT_TRY(folder_.make(in.settings.out_directory));
  path_ = path.string();
  return check_writable(path_);
}

Status SensitivityFile::write(const Sensitivities& sensitivities) const {
  if (path_.empty()) return {};
  SidecarContents contents = contents_;
  contents.sensitivities = sensitivities;
  return write_durably(path_, make_sidecar(contents));
}

}  // namespace kvant::cli
