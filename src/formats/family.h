// What a format family's file gives to the registry: its formats, and how a codec of each is made.
//
// A family is a file src/formats/<family>.cc with one function `<family>_family()`, named in
// formats.def. The registry checks what is common to all (side, width, group, given scale) before
// it calls `make`, adds the rotated variant of every format that isn't exact, and finds the numbers
// that the property tests hold a format to.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "formats/codec.h"

namespace kvant {

// The signal-to-noise ratio in dB that a round trip of Gaussian rows must have, from both sides: a
// result that is too good is a bug as well.
struct DistortionBand {
  double low_db = 0;
  double high_db = 0;
};

struct FormatDefinition {
  FormatInfo info;
  // What this format alone can refuse; empty: nothing.
  std::function<Status(const FormatInfo&, const CodecBinding&)> check;
  // Makes a codec; the binding has been checked against `info`. Never null.
  std::function<std::unique_ptr<Codec>(const CodecBinding&)> make;
  // The band for standard normal rows of this width.
  std::function<DistortionBand(Side, int dim)> band;
  // An artifact of this width that means nothing, where `info` needs one: for sizes, and for tests.
  std::function<std::vector<float>(int dim)> any_artifact;
  // Encoding a decoded page gives the same bytes. True of a grid fitted to its extremes, not of one
  // that is searched.
  bool idempotent = false;
};

// Every definition, rotated variants included, in the order of all_formats().
const std::vector<FormatDefinition>& all_definitions();

// The definition of a registered format.
const FormatDefinition& definition_of(const FormatInfo& format);

#define KVANT_FORMAT_FAMILY(family) std::vector<FormatDefinition> family##_family();
#include "formats/formats.def"
#undef KVANT_FORMAT_FAMILY

}  // namespace kvant
