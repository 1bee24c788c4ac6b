// Whether the tests of this build run many times slower than a release's: under sanitizers, or in
// an emulator. The release build runs every test over everything that is registered, to compare
// numbers. A slow one asks another question, whether a code path touches what it mustn't or
// computes something else with other instructions: there the tests that would take minutes go
// through one of each kind.
#pragma once

namespace kvant {

inline constexpr bool kSlowBuild = *KVANT_SLOW_BUILD != 0;

}  // namespace kvant
