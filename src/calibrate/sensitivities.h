// Sensitivities: what kvant sensitivity measured of a model, as its sidecar keeps it.
//
// `layers.<l>.sensitivity.<format>.layer` F64 [4]: relative errors of scores and of outputs, the KL
// divergence when that layer alone is in the format, and its standard error.
// `layers.<l>.sensitivity.<format>.heads` F64 [heads][2]: errors of scores and of outputs. What
// they were measured on, and the mix of formats that they led to, is in the metadata.
#pragma once

#include <string>
#include <vector>

#include "files/safetensors.h"
#include "files/safetensors_writer.h"
#include "kvant/status.h"

namespace kvant {

struct HeadSensitivity {
  double scores = 0, outputs = 0;
  bool operator==(const HeadSensitivity&) const = default;
};

struct LayerSensitivity {
  int layer = 0;
  double scores = 0, outputs = 0;
  double kld = 0, kld_error = 0;
  std::vector<HeadSensitivity> heads;  // per KV head
  bool operator==(const LayerSensitivity&) const = default;
};

struct FormatSensitivities {
  std::string format;  // as --kv named it
  std::vector<LayerSensitivity> layers;
  bool operator==(const FormatSensitivities&) const = default;
};

// Formats of all layers, as --kv and --kv-layers take them.
struct ProposedMix {
  std::string kv, kv_layers;
  double budget = 0, sealed_bits = 0;
  double kld = 0, kld_error = 0;
  bool operator==(const ProposedMix&) const = default;
};

struct Sensitivities {
  std::string data;     // digest of the token ids that were read
  std::string command;  // that measured them
  int64_t tokens = 0;
  std::vector<FormatSensitivities> formats;  // empty: there are none
  ProposedMix proposal;
  bool operator==(const Sensitivities&) const = default;
};

void write_sensitivities(const Sensitivities& sensitivities, SafetensorsWriter& writer,
                         std::vector<std::pair<std::string, std::string>>& metadata);
// corrupt with file and tensor where one isn't what write_sensitivities() writes.
Result<Sensitivities> read_sensitivities(const Safetensors& file);

}  // namespace kvant
