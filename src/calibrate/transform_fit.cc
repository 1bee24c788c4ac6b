#include "calibrate/transform_fit.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "formats/rotated.h"

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

using Solver = Eigen::SelfAdjointEigenSolver<Matrix>;

// A power of a symmetric positive matrix.
Matrix power_of(const Solver& solver, double exponent) {
  const Eigen::VectorXd values = solver.eigenvalues().unaryExpr([exponent](double x) {
    return std::pow(std::max(x, std::numeric_limits<double>::min()), exponent);
  });
  return solver.eigenvectors() * values.asDiagonal() * solver.eigenvectors().transpose();
}

// C' and U·Λ·Uᵀ = C'^½·S·C'^½ (transform_fit.h).
struct Weighted {
  Solver queries;             // of C'
  Eigen::VectorXd variances;  // Λ, rising
  Matrix vectors;             // U

  Matrix root(double exponent) const { return power_of(queries, exponent); }
};

Result<Weighted> weight(const HeadMoments& moments, int dim, double lambda) {
  if (moments.num_keys == 0 || moments.num_queries == 0)
    return unsupported("no whole page after the first was seen");
  const Matrix keys = mean_of(moments.key, moments.num_keys, dim);
  Matrix queries = mean_of(moments.query, moments.num_queries, dim);
  if (!(keys.trace() > 0)) return unsupported("the keys of every page are all alike");
  if (!(queries.trace() > 0))
    return unsupported("no query pays attention to a page after the first");
  queries /= queries.trace() / dim;
  queries += lambda * Matrix::Identity(dim, dim);
  Weighted out{.queries = Solver(queries), .variances = {}, .vectors = {}};
  const Matrix root = out.root(0.5);
  const Solver solver(root * keys * root);
  out.variances = solver.eigenvalues();
  out.vectors = solver.eigenvectors();
  return out;
}

// Two matrices as an artifact has them: row-major, one after the other.
std::vector<float> floats_of(const Matrix& encode, const Matrix& query) {
  std::vector<float> out;
  for (const Matrix* matrix : {&encode, &query}) {
    for (Eigen::Index i = 0; i < matrix->rows(); ++i) {
      for (Eigen::Index j = 0; j < matrix->cols(); ++j)
        out.push_back(static_cast<float>((*matrix)(i, j)));
    }
  }
  return out;
}

// The orthonormal Hadamard matrix of the blocks that rotations have.
Matrix hadamard(int dim) {
  const int block = rotation_block(dim);
  Matrix out = Matrix::Zero(dim, dim);
  for (int i = 0; i < dim; ++i) {
    for (int j = i / block * block; j < i / block * block + block; ++j) {
      const bool odd = std::popcount(static_cast<unsigned>((i % block) & (j % block))) % 2 != 0;
      out(i, j) = (odd ? -1 : 1) / std::sqrt(static_cast<double>(block));
    }
  }
  return out;
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
  KVANT_ASSIGN(const Weighted weighted, weight(moments, dim, lambda));
  Matrix basis = weighted.vectors.rowwise().reverse();  // variances fall
  fix_signs(basis);

  HeadTransform fit;
  for (int i = 0; i < dim; ++i)
    fit.variances.push_back(std::max(weighted.variances[dim - 1 - i], 0.0));
  fit.matrices =
      floats_of(basis.transpose() * weighted.root(0.5), basis.transpose() * weighted.root(-0.5));
  return fit;
}

// With C'^½·S·C'^½ = U·Λ·Uᵀ, C' # S^-1 = C'^½·U·Λ^-½·Uᵀ·C'^½. Directions in which no key varied
// would be stretched without end: Λ counts as a millionth of its mean at least.
Result<std::vector<float>> fit_balanced(const HeadMoments& moments, int dim, double lambda) {
  KVANT_ASSIGN(const Weighted weighted, weight(moments, dim, lambda));
  const double least = 1e-6 * weighted.variances.mean();
  const Eigen::VectorXd stretch =
      weighted.variances.unaryExpr([least](double x) { return 1 / std::sqrt(std::max(x, least)); });
  const Matrix root = weighted.root(0.5);
  const Matrix mean =
      root * weighted.vectors * stretch.asDiagonal() * weighted.vectors.transpose() * root;
  const Eigen::SelfAdjointEigenSolver<Matrix> solver((mean + mean.transpose()) / 2);
  const Matrix turn = hadamard(dim);
  return floats_of(turn * power_of(solver, 0.5), turn * power_of(solver, -0.5));
}

}  // namespace kvant
