#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvant {

void reference_attention(const ReferenceQuery& q, double* out, double* weights) {
  std::vector<double> p(static_cast<size_t>(q.num_tokens));
  for (int64_t t = 0; t < q.num_tokens; ++t) {
    double score = 0;
    for (int i = 0; i < q.key_dim; ++i)
      score += double{q.query[i]} * double{q.keys[t * q.key_stride + i]};
    score *= q.scale;
    if (q.soft_cap > 0) score = q.soft_cap * std::tanh(score / q.soft_cap);
    p[static_cast<size_t>(t)] = score;
  }
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - max);
  std::fill_n(out, q.value_dim, 0.0);
  for (int64_t t = 0; t < q.num_tokens; ++t) {
    const double weight = p[static_cast<size_t>(t)] / sum;
    if (weights != nullptr) weights[t] = weight;
    for (int c = 0; c < q.value_dim; ++c)
      out[c] += weight * double{q.values[t * q.value_stride + c]};
  }
}

}  // namespace kvant
