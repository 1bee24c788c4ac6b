#include "calibrate/transform_fit.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace kvant {
namespace {

using Matrix = Eigen::MatrixXd;

constexpr size_t kSection = 16;  // channels whose bits are alike

// What the lower half of `sums` stands for.
Matrix mean_of(const std::vector<double>& sums, int64_t count, int dim) {
  const Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>
      lower(sums.data(), dim, dim);
  return Matrix(lower.selfadjointView<Eigen::Lower>()) / static_cast<double>(count);
}

// f of a symmetric positive matrix.
Matrix function_of(const Matrix& symmetric, double (*f)(double)) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(symmetric);
  const Eigen::VectorXd values = solver.eigenvalues().unaryExpr(
      [f](double x) { return f(std::max(x, std::numeric_limits<double>::min())); });
  return solver.eigenvectors() * values.asDiagonal() * solver.eigenvectors().transpose();
}

// Expected squared error of a value of variance 1 on a grid from the smallest to the largest of 64;
// at one and two bits the grid is fitted, and still pays for its few levels.
double grid_error(int bits) {
  const double factor = bits == 0 ? 1 : bits == 1 ? 1.6 : bits == 2 ? 1.3 : 1;
  return factor * std::pow(4.0, -bits);
}

// The sign of an eigenvector is nobody's choice: its largest entry becomes positive.
void fix_signs(Matrix& vectors) {
  for (Eigen::Index c = 0; c < vectors.cols(); ++c) {
    Eigen::Index most = 0;
    vectors.col(c).cwiseAbs().maxCoeff(&most);
    if (vectors(most, c) < 0) vectors.col(c) *= -1;
  }
}

}  // namespace

std::vector<int> allocate_bits(std::span<const double> variances, const BitOptions& options) {
  const size_t sections = variances.size() / kSection;
  const size_t budget = sections * static_cast<size_t>(options.mean_bits);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // least[s][b]: error of the first s sections with b bits between them, and the width and number
  // of the last of them.
  struct Step {
    double error = kInfinity;
    int width = 0;
    size_t sections = 0;
  };
  std::vector<std::vector<Step>> least(sections + 1, std::vector<Step>(budget + 1));
  least[0][0].error = 0;
  const auto variance_of = [&](size_t first, size_t count) {
    const auto* at = variances.data() + first * kSection;
    return std::accumulate(at, at + count * kSection, 0.0);
  };
  for (size_t s = 0; s < sections; ++s) {
    for (size_t spent = 0; spent <= budget; ++spent) {
      for (const int width : options.widths) {
        const size_t count = width % 2 == 0 ? 1 : 2;  // single bits are packed from 32 channels on
        const size_t now = spent + count * static_cast<size_t>(width);
        if (now > budget || s + count > sections) continue;
        const double error = least[s][spent].error + variance_of(s, count) * grid_error(width);
        if (error < least[s + count][now].error) least[s + count][now] = {error, width, count};
      }
    }
  }
  std::vector<int> bits;
  for (size_t s = sections, spent = budget; s > 0;) {
    const Step& step = least[s][spent];
    if (step.sections == 0) return {};
    bits.insert(bits.end(), step.sections * kSection, step.width);
    spent -= step.sections * static_cast<size_t>(step.width);
    s -= step.sections;
  }
  std::sort(bits.begin(), bits.end(), std::greater());  // equal variances may tie
  return bits;
}

Result<HeadTransform> fit_transform(const HeadMoments& moments, int dim, double lambda) {
  if (moments.num_keys == 0 || moments.num_queries == 0)
    return unsupported("no whole page after the first was seen");
  const Matrix keys = mean_of(moments.key, moments.num_keys, dim);
  Matrix queries = mean_of(moments.query, moments.num_queries, dim);
  if (!(keys.trace() > 0)) return unsupported("the keys of every page are all alike");
  if (!(queries.trace() > 0)) return unsupported("the queries are all zero");
  queries /= queries.trace() / dim;
  queries += lambda * Matrix::Identity(dim, dim);

  const Matrix root = function_of(queries, [](double x) { return std::sqrt(x); });
  const Matrix inverse_root = function_of(queries, [](double x) { return 1 / std::sqrt(x); });
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(root * keys * root);
  Matrix basis = solver.eigenvectors().rowwise().reverse();  // variances fall
  fix_signs(basis);

  HeadTransform fit;
  for (int i = 0; i < dim; ++i)
    fit.variances.push_back(std::max(solver.eigenvalues()[dim - 1 - i], 0.0));
  const Matrix encode = basis.transpose() * root, query = basis.transpose() * inverse_root;
  for (const Matrix* matrix : {&encode, &query}) {
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) fit.matrices.push_back(static_cast<float>((*matrix)(i, j)));
    }
  }
  return fit;
}

}  // namespace kvant
