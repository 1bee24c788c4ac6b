#include "test_formats.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/bytes.h"

namespace kvant::test {
namespace {

constexpr size_t kT = kPageTokens;

float round_to(float x, float step) { return std::nearbyint(x / step) * step; }

float sum_of(const float* x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{x[i]};
  return static_cast<float>(sum);
}

// A page of float rows and, behind them, a side blob of one float.
class RowsCodec : public Codec {
 public:
  explicit RowsCodec(const CodecBinding& binding)
      : binding_(binding), dim_(static_cast<size_t>(binding.dim)) {}

  size_t page_bytes() const override {
    return round_up(blob_offset(binding_.dim) + sizeof(float), kAlignment);
  }
  void encode(const PageInput& input, std::byte* page) const override {
    std::memset(page, 0, page_bytes());
    auto* rows = reinterpret_cast<float*>(page);
    for (size_t i = 0; i < kT * dim_; ++i) rows[i] = round_to(input.rows[i], 1.0f / 16);
  }
  void decode(const std::byte* page, float* rows) const override { read_rows(page, 0, rows); }

  size_t query_bytes(int num_queries) const override {
    return round_up(static_cast<size_t>(num_queries) * dim_ * sizeof(float), kAlignment);
  }
  void prepare_query(const float* queries, int num_queries, std::byte* prepared) const override {
    std::memcpy(prepared, queries, static_cast<size_t>(num_queries) * dim_ * sizeof(float));
  }
  void scores(const PageRead& page, const std::byte* prepared, int num_queries,
              int64_t first_position, float* scores, size_t stride) const override {
    std::vector<float> rows(kT * dim_);
    read_rows(page.bytes, first_position, rows.data());
    const auto* q = reinterpret_cast<const float*>(prepared);
    for (size_t i = 0; i < static_cast<size_t>(num_queries); ++i) {
      for (size_t t = 0; t < kT; ++t) {
        float score = 0;
        for (size_t c = 0; c < dim_; ++c) score += q[i * dim_ + c] * rows[t * dim_ + c];
        scores[i * stride + t] = score;
      }
    }
  }
  void accumulate(const PageRead& page, const float* p, size_t stride_p, int num_queries,
                  float* acc, size_t stride_acc) const override {
    std::vector<float> rows(kT * dim_);
    read_stored(page.bytes, rows.data());
    for (size_t i = 0; i < static_cast<size_t>(num_queries); ++i) {
      for (size_t t = 0; t < kT; ++t) {
        for (size_t c = 0; c < dim_; ++c)
          acc[i * stride_acc + c] += p[i * stride_p + t] * rows[t * dim_ + c];
      }
    }
  }
  std::string kernel_name() const override { return "test"; }

 protected:
  // Rows in the codec's own basis, and in the model's.
  virtual void read_stored(const std::byte* page, float* rows) const {
    std::memcpy(rows, page, kT * dim_ * sizeof(float));
  }
  virtual void read_rows(const std::byte* page, int64_t, float* rows) const {
    read_stored(page, rows);
  }

  float* blob(std::byte* page) const {
    return reinterpret_cast<float*>(page + blob_offset(binding_.dim));
  }
  const float* blob(const std::byte* page) const {
    return reinterpret_cast<const float*>(page + blob_offset(binding_.dim));
  }

  CodecBinding binding_;
  size_t dim_;
};

class BasisCodec final : public RowsCodec {
 public:
  using RowsCodec::RowsCodec;
  void encode(const PageInput& input, std::byte* page) const override {
    RowsCodec::encode(input, page);
    for (size_t t = 0; t < kT; ++t) turn(reinterpret_cast<float*>(page) + t * dim_);
  }
  void finish(float* acc, int num_queries, size_t stride) const override {
    for (size_t i = 0; i < static_cast<size_t>(num_queries); ++i) turn_back(acc + i * stride);
  }

 protected:
  void read_rows(const std::byte* page, int64_t, float* rows) const override {
    read_stored(page, rows);
    for (size_t t = 0; t < kT; ++t) turn_back(rows + t * dim_);
  }

 private:
  void turn(float* row) const {
    std::reverse(row, row + dim_);
    for (size_t c = 1; c < dim_; c += 2) row[c] = -row[c];
  }
  void turn_back(float* row) const {
    for (size_t c = 1; c < dim_; c += 2) row[c] = -row[c];
    std::reverse(row, row + dim_);
  }
};

class PreRopeCodec final : public RowsCodec {
 public:
  using RowsCodec::RowsCodec;
  void encode(const PageInput& input, std::byte* page) const override {
    PageInput before = input;
    before.rows = input.pre_rope_rows;
    RowsCodec::encode(before, page);
    const auto first = static_cast<float>(input.first_position);
    *blob(page) = first;  // decode() isn't told the position
  }

 protected:
  void read_rows(const std::byte* page, int64_t, float* rows) const override {
    read_stored(page, rows);
    const auto pairs = static_cast<size_t>(binding_.rope.num_pairs);
    for (size_t t = 0; t < kT; ++t) {
      for (size_t j = 0; j < pairs; ++j) {
        const float angle = (*blob(page) + static_cast<float>(t)) * binding_.rope.inv_freq[j];
        const float x = rows[t * dim_ + j], y = rows[t * dim_ + j + pairs];
        rows[t * dim_ + j] = x * std::cos(angle) - y * std::sin(angle);
        rows[t * dim_ + j + pairs] = x * std::sin(angle) + y * std::cos(angle);
      }
    }
  }
};

// Its first stored value is replaced by the mean of another page that the cache has to provide.
class MeanCodec : public RowsCodec {
 public:
  using RowsCodec::RowsCodec;
  void encode(const PageInput& input, std::byte* page) const override {
    RowsCodec::encode(input, page);
    *blob(page) = sum_of(other_page(input), kT * dim_) /
                  static_cast<float>(kT * dim_);  // tests bind equal widths
  }

 protected:
  virtual const float* other_page(const PageInput& input) const = 0;
  void read_stored(const std::byte* page, float* rows) const override {
    RowsCodec::read_stored(page, rows);
    rows[0] = *blob(page);
  }
};

class PreviousCodec final : public MeanCodec {
 public:
  using MeanCodec::MeanCodec;

 protected:
  const float* other_page(const PageInput& input) const override { return input.previous_layer; }
};

class KeyRowsCodec final : public MeanCodec {
 public:
  using MeanCodec::MeanCodec;

 protected:
  const float* other_page(const PageInput& input) const override { return input.key_rows; }
};

class OutlierCodec final : public RowsCodec {
 public:
  using RowsCodec::RowsCodec;
  size_t page_bytes() const override {
    return round_up(blob_offset(binding_.dim) + 2 * sizeof(float), kAlignment);
  }
  void encode(const PageInput& input, std::byte* page) const override {
    RowsCodec::encode(input, page);
    const auto less = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    const auto at = std::max_element(input.rows, input.rows + kT * dim_, less) - input.rows;
    reinterpret_cast<float*>(page)[at] = 0;
    blob(page)[0] = input.rows[at];
    blob(page)[1] = static_cast<float>(at);
  }

 protected:
  void read_stored(const std::byte* page, float* rows) const override {
    RowsCodec::read_stored(page, rows);
    rows[static_cast<size_t>(blob(page)[1])] += blob(page)[0];
  }
};

class ArtifactCodec final : public RowsCodec {
 public:
  explicit ArtifactCodec(const CodecBinding& binding)
      : RowsCodec(binding), scale_(binding.artifacts->tensor_scale) {}
  void encode(const PageInput& input, std::byte* page) const override {
    std::memset(page, 0, page_bytes());
    auto* rows = reinterpret_cast<float*>(page);
    for (size_t i = 0; i < kT * dim_; ++i) rows[i] = round_to(input.rows[i], scale_);
  }

 private:
  float scale_;
};

class TableCodec final : public RowsCodec {
 public:
  using RowsCodec::RowsCodec;
  size_t page_bytes() const override { return round_up(kT * dim_, kAlignment); }
  void encode(const PageInput& input, std::byte* page) const override {
    for (size_t i = 0; i < kT * dim_; ++i) {
      page[i] =
          static_cast<std::byte>(std::clamp(std::nearbyint(input.rows[i] * 2) + 8, 0.0f, 15.0f));
    }
  }
  size_t query_bytes(int num_queries) const override {
    return static_cast<size_t>(num_queries) * dim_ * kLevels * sizeof(float);
  }
  void prepare_query(const float* queries, int num_queries, std::byte* prepared) const override {
    auto* table = reinterpret_cast<float*>(prepared);
    for (size_t i = 0; i < static_cast<size_t>(num_queries) * dim_; ++i) {
      for (size_t level = 0; level < kLevels; ++level)
        table[i * kLevels + level] = queries[i] * value_of(level);
    }
  }
  void scores(const PageRead& page, const std::byte* prepared, int num_queries, int64_t,
              float* scores, size_t stride) const override {
    const auto* table = reinterpret_cast<const float*>(prepared);
    for (size_t i = 0; i < static_cast<size_t>(num_queries); ++i) {
      for (size_t t = 0; t < kT; ++t) {
        float score = 0;
        for (size_t c = 0; c < dim_; ++c) {
          score += table[(i * dim_ + c) * kLevels + static_cast<size_t>(page.bytes[t * dim_ + c])];
        }
        scores[i * stride + t] = score;
      }
    }
  }

 protected:
  void read_stored(const std::byte* page, float* rows) const override {
    for (size_t i = 0; i < kT * dim_; ++i) rows[i] = value_of(static_cast<size_t>(page[i]));
  }

 private:
  static constexpr size_t kLevels = 16;
  static float value_of(size_t level) { return (static_cast<float>(level) - 8) / 2; }
};

template <typename T>
Result<std::unique_ptr<Codec>> make(const CodecBinding& binding) {
  return std::unique_ptr<Codec>(std::make_unique<T>(binding));
}

struct TestFormat {
  FormatInfo info;
  Result<std::unique_ptr<Codec>> (*make)(const CodecBinding&);
};

FormatInfo named(std::string name, bool exact, FormatNeeds needs = {}) {
  FormatInfo info;
  info.name = std::move(name);
  info.exact = exact;
  info.needs = needs;
  return info;
}

const std::vector<TestFormat>& formats() {
  static const std::vector<TestFormat> all = {
      {named("f32", true), nullptr},
      {named("f16", true), nullptr},
      {named("bf16", true), nullptr},
      {named("test_rows", false), make<RowsCodec>},
      {named("test_basis", false), make<BasisCodec>},
      {named("test_pre_rope", false, {.pre_rope_rows = true}), make<PreRopeCodec>},
      {named("test_previous", false, {.previous_layer = true}), make<PreviousCodec>},
      {named("test_key_rows", false, {.key_rows = true}), make<KeyRowsCodec>},
      {named("test_outlier", false), make<OutlierCodec>},
      {named("test_artifact", false, {.artifacts = true}), make<ArtifactCodec>},
      {named("test_table", false), make<TableCodec>},
  };
  return all;
}

}  // namespace

FormatSource test_formats(const FormatSource* registered) {
  FormatSource source;
  source.find = [registered](std::string_view name) -> Result<const FormatInfo*> {
    for (const TestFormat& format : formats()) {
      if (format.info.name == name) return &format.info;
    }
    if (registered != nullptr) return registered->find(name);
    return not_found("no test format " + std::string(name));
  };
  source.bind = [registered](const FormatInfo& info,
                             const CodecBinding& binding) -> Result<std::unique_ptr<Codec>> {
    for (const TestFormat& format : formats()) {
      if (format.info.name != info.name) continue;
      if (info.needs.artifacts && binding.artifacts == nullptr)
        return unsupported(info.name + " needs a given scale");
      return format.make(binding);
    }
    return registered->bind(info, binding);
  };
  return source;
}

}  // namespace kvant::test
