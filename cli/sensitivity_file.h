// SensitivityFile: the sidecar that kvant sensitivity --out adds what it measured to.
//
// The calibration that the run uses goes along, for its formats are what was measured; a
// calibration in the directory that the run doesn't use is refused rather than lost.
#pragma once

#include "calibrate/sensitivities.h"
#include "cli/open_model.h"
#include "cli/out_folder.h"

namespace kvant::cli {

class SensitivityFile {
 public:
  // What can be refused before anything is measured; without --out nothing is.
  Status prepare(const Invocation& in, const OpenModel& open);
  // Nothing without --out.
  Status write(const Sensitivities& sensitivities) const;

  const std::string& path() const { return path_; }  // empty without --out

 private:
  std::string path_;
  SidecarContents contents_;
  OutFolder folder_;
};

}  // namespace kvant::cli
