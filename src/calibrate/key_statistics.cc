#include "calibrate/key_statistics.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "base/float_types.h"

namespace kvant {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Sums = Eigen::Map<Rows>;

// sums += Σ x·xᵀ over the rows, in their order; the lower half only.
void add_products(const Rows& rows, std::vector<double>& sums) {
  Sums(sums.data(), rows.cols(), rows.cols())
      .selfadjointView<Eigen::Lower>()
      .rankUpdate(rows.transpose());
}

// Whole pages from the second on; steps begin at a page's start.
void add_pages(const ObservedRows& k, size_t head, HeadMoments& to) {
  Rows page(kPageTokens, k.dim);
  for (int first = 0; first + kPageTokens <= k.num_tokens; first += kPageTokens) {
    if (k.first_position + first < kPageTokens) continue;
    for (int t = 0; t < kPageTokens; ++t) {
      const float* row = k.row(static_cast<size_t>(first + t), head);
      for (int i = 0; i < k.dim; ++i) page(t, i) = double{bf16_to_f32(f32_to_bf16(row[i]))};
    }
    page.rowwise() -= page.colwise().mean().eval();
    add_products(page, to.key);
    to.num_keys += kPageTokens;
  }
}

// How much an error of scores on sealed pages moves the output of a query: Σ of squared masses over
// the pages that it reads sealed.
double weight_of(const ObservedRows& q, size_t token, size_t head) {
  const auto num_pages = static_cast<size_t>(q.mass->num_pages);
  const float* mass =
      q.mass->mass.data() + (token * static_cast<size_t>(q.num_heads) + head) * num_pages;
  const auto own_page =
      static_cast<size_t>(q.first_position + static_cast<int64_t>(token)) / kPageTokens;
  double sum = 0;
  for (size_t page = 1; page < own_page; ++page) sum += double{mass[page]} * double{mass[page]};
  return sum;
}

// Those of the query heads [first_head, first_head + group).
void add_group(const ObservedRows& q, size_t first_head, size_t group, HeadMoments& to) {
  for (int first = 0; first < q.num_tokens; first += kPageTokens) {
    const int count = std::min(kPageTokens, q.num_tokens - first);
    Rows rows(count * static_cast<int>(group), q.dim);
    for (Eigen::Index r = 0; r < rows.rows(); ++r) {
      const size_t token = static_cast<size_t>(first) + static_cast<size_t>(r) / group;
      const size_t head = first_head + static_cast<size_t>(r) % group;
      const double factor = std::sqrt(weight_of(q, token, head));
      const float* row = q.row(token, head);
      for (int i = 0; i < q.dim; ++i) rows(r, i) = factor * double{row[i]};
    }
    add_products(rows, to.query);
    to.num_queries += rows.rows();
  }
}

}  // namespace

KeyStatistics::KeyStatistics(const ModelInfo& info, ThreadPool& threads) : threads_(threads) {
  for (const CacheLayer& layer : info.cache_layers) {
    LayerMoments& moments = layers_.emplace_back();
    if (layer.shares >= 0 || layer.num_kv_heads == 0) continue;
    moments.dim = layer.key_dim;
    moments.heads.resize(static_cast<size_t>(layer.num_kv_heads));
    const auto dim = static_cast<size_t>(layer.key_dim);
    for (HeadMoments& head : moments.heads) {
      head.query.assign(dim * dim, 0);
      head.key.assign(dim * dim, 0);
    }
  }
}

void KeyStatistics::see_keys(const ObservedRows& rows) {
  LayerMoments& to = layers_[static_cast<size_t>(rows.layer)];
  threads_.run(to.heads.size(), [&](size_t head, int) { add_pages(rows, head, to.heads[head]); });
}

void KeyStatistics::see_queries(const ObservedRows& rows) {
  LayerMoments& to = layers_[static_cast<size_t>(rows.layer)];
  const size_t group = static_cast<size_t>(rows.num_heads) / to.heads.size();
  threads_.run(to.heads.size(),
               [&](size_t head, int) { add_group(rows, head * group, group, to.heads[head]); });
}

Status KeyStatistics::add(Model& model, std::span<const int32_t> tokens, int chunk) {
  RowObserver* const self = this;
  return observe(model, threads_, tokens, chunk, {&self, 1});
}

}  // namespace kvant
