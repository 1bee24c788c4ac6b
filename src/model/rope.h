// Rotary position embedding: frequencies with their scalings, a table of angles per step, and the
// rotation of one head.
//
// Keys and queries leave rotate() in one layout whatever the file's: pair j is channels (j, j +
// num_pairs), so that caches and formats know no other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant {

// How the two channels of a pair lie in a projection's output.
enum class RopePairing : uint8_t {
  kHalves,      // (j, j + num_pairs)
  kNeighbours,  // (2j, 2j + 1)
};

struct Rope {
  std::vector<float> inv_freq;    // one per pair; channels past 2·size are not rotated
  float attention_factor = 1.0f;  // multiplies cos and sin
  RopePairing pairing = RopePairing::kHalves;
  int num_pairs() const { return static_cast<int>(inv_freq.size()); }
};

// A scaling as configurations describe it; fields that a kind doesn't use are ignored.
struct RopeScaling {
  std::string kind = "default";  // a name that make_rope knows
  double factor = 1;
  int64_t original_positions = 0;  // that the model was trained with before it was extended
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double mscale = 0, mscale_all_dim = 0;             // yarn; 0: not given
  bool truncate = true;                              // yarn
  double attention_factor = 0;                       // yarn, longrope; 0: from the factor
  std::vector<double> pair_factors = {};             // longrope: the list in force
};

// "default, linear, llama3, …"
std::string known_rope_scalings();
// Whether a kind changes frequencies so that a model reaches past its original length; false for
// what isn't known.
bool rope_scaling_stretches(std::string_view kind);

// Frequencies base^(−2j/dims) for dims/2 pairs, scaled. unsupported with the kind and the known
// ones.
Result<Rope> make_rope(int dims, double base, const RopeScaling& scaling);

// cos and sin of a step's rows: [row][2][num_pairs], cos first, attention factor included.
void fill_rope_row(const Rope& rope, int64_t position, float* row);

// Brings a head's channels into the layout of pairs (j, j + num_pairs), in place. `scratch`:
// 2·num_pairs floats.
void to_halves(const Rope& rope, float* head, float* scratch);
// Rotates a head in that layout, in place; `row` as fill_rope_row made it.
void rotate(const Rope& rope, const float* row, float* head);

}  // namespace kvant
