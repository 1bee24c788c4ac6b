// The transforms of formats tc<B> and bal<B>: basis and bits of one head's keys, from their
// statistics.
//
// C is the mean of w·q·qᵀ (key_statistics.h), S the covariance of K within pages. With C' = C /
// mean diag(C) + λ·I and C'^½·S·C'^½ = U·Λ·Uᵀ, keys are stored as k' = Uᵀ·C'^½·k and asked with q'
// = Uᵀ·C'^-½·q. Then q'·k' = q·k, the channels of k' are uncorrelated with variances Λ, and squared
// error in k' is expected squared error of the score. Bits go to channels so that Σ
// Λ_i·c(b_i)·4^(-b_i) is least (the rate allocation of transform coding; Gersho and Gray, 1992,
// section 8.3).
//
// bal<B> gives all channels the same bits. M² = C' # S^-1 (A # B: the geometric mean of positive
// matrices; Bhatia, Positive Definite Matrices, 2007, chapter 4) is the one basis M·k in which keys
// vary as queries weight them: M·S·M = M^-1·C'·M^-1. A Hadamard matrix H then shares both out among
// the channels: k' = H·M·k, q' = H·M^-1·q.
#pragma once

#include <span>
#include <vector>

#include "calibrate/key_statistics.h"
#include "kvant/status.h"

namespace kvant {

// The basis of a head's keys, the same for every number of bits.
struct HeadTransform {
  std::vector<float> matrices;    // A and A^-T, as format tc<B> reads them (formats/transform.cc)
  std::vector<double> variances;  // Λ, falling
};

// unsupported where the statistics don't tell a basis: no pages, or no variance at all.
Result<HeadTransform> fit_transform(const HeadMoments& moments, int dim, double lambda = 0.1);

// A and A^-T of the balanced basis. The same refusals.
Result<std::vector<float>> fit_balanced(const HeadMoments& moments, int dim, double lambda = 0.1);

struct BitOptions {
  int mean_bits = 4;
  std::vector<int> widths = {2, 3, 4, 5, 6, 8};  // of a section, rising
};

// Bits of channels whose variances fall, in sections of 16 (of 32 where the width is odd): those of
// least error whose mean is exactly `mean_bits`; empty if there are none.
std::vector<int> allocate_bits(std::span<const double> variances, const BitOptions& options);

}  // namespace kvant
