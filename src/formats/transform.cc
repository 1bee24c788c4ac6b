// Family transform: transform coding of keys as queries see them, in bits that differ by channel.
//
// Keys that only ever meet queries in dot products may be stored in another basis: k' = A·k, asked
// with q' = A^-T·q. Calibration (calibrate/transform_fit.h) finds per layer and head the basis in
// which channels are uncorrelated and squared error is expected squared error of the score, and how
// many bits each channel is worth (transform coding; Gersho and Gray, Vector Quantization and
// Signal Compression, 1992). Channels are sorted by bits, so a page is a few sections, each a page
// of int<b>_channel_z: [section of most bits] … [section of fewest].
//
// bal<B> is the same with another basis, in which all channels are worth B bits: one section.
//
// The artifact of a head, as floats: A [D][D], A^-T [D][D], both row-major, then the bits of the D
// channels of k', falling. Their mean is the B of tc<B>; all of them are that of bal<B>.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "base/bytes.h"
#include "formats/family.h"
#include "formats/gauss_bands.h"
#include "formats/page_kernels.h"
#include "formats/stored_scale.h"
#include "simd/clones.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;
constexpr std::array<int, 7> kWidths = {8, 6, 5, 4, 3, 2, 1};

// Sections are so many channels, or multiples of it: the kernels take 16, and a plane of single
// bits is full from 32 on (page_kernels.h).
constexpr size_t section_channels(int bits) { return bits % 2 == 0 ? 16 : 32; }

// Queries of a pass whose scores of one section fit on the stack.
constexpr size_t kStackQueries = 64;

// out[r] = M·in[r] for rows of `dim` floats, M row-major. Sums run over columns in rising order, so
// that every instruction set gives the same bits; `transposed` is M's transpose, whose rows are
// then added one by one.
KVANT_CLONES void apply_matrix(const float* transposed, const float* in, size_t num_rows,
                               size_t dim, float* out) {
  for (size_t r = 0; r < num_rows; ++r) {
    const float* x = in + r * dim;
    float* y = out + r * dim;
    for (size_t i = 0; i < dim; ++i) y[i] = 0;
    for (size_t j = 0; j < dim; ++j) {
      const float* column = transposed + j * dim;
      const float factor = x[j];
      for (size_t i = 0; i < dim; ++i) y[i] += factor * column[i];
    }
  }
}

struct TransformSpec {
  int bits = 4;
  bool equal_bits = false;  // bal<B>: all channels have `bits`, not only on average
};

// The plain format of a section's channels. The largest tokens of a channel are those that matter,
// so grids end on them; but in channels that are worth no more than one or two bits a fitted grid
// is closer.
std::string section_format(int bits, const TransformSpec& spec) {
  const bool fitted = bits <= 2 && !spec.equal_bits;
  return "int" + std::to_string(bits) + "_channel_z" + (fitted ? "_lsq" : "");
}

// The end of the run of equal bits that begins at `first`.
size_t section_end(std::span<const float> bits, size_t first) {
  size_t end = first;
  while (end < bits.size() && bits[end] == bits[first]) ++end;
  return end;
}

class TransformCodec final : public Codec {
 public:
  TransformCodec(std::string name, const TransformSpec& spec, const CodecBinding& binding)
      : name_(std::move(name)),
        spec_(spec),
        dim_(static_cast<size_t>(binding.dim)),
        encode_t_(dim_ * dim_),
        query_(dim_ * dim_),
        query_t_(dim_ * dim_) {
    const float* tensor = binding.artifacts->tensor.data();
    const float* encode = tensor;
    const float* query = tensor + dim_ * dim_;
    const std::span<const float> bits = binding.artifacts->tensor.last(dim_);
    std::copy_n(query, dim_ * dim_, query_.data());
    for (size_t i = 0; i < dim_; ++i) {
      for (size_t j = 0; j < dim_; ++j) {
        encode_t_[j * dim_ + i] = encode[i * dim_ + j];
        query_t_[j * dim_ + i] = query[i * dim_ + j];
      }
    }
    for (size_t first = 0, end = 0; first < dim_; first = end) {
      end = section_end(bits, first);
      add_section(first, end - first, static_cast<int>(bits[first]), binding);
    }
  }

  size_t page_bytes() const override { return page_bytes_; }

  void encode(const PageInput& input, std::byte* page) const override {
    AlignedArray<float> rows(kT * dim_), turned(kT * dim_), part(kT * dim_);
    for (size_t i = 0; i < kT * dim_; ++i) rows[i] = saturate(input.rows[i]);
    apply_matrix(encode_t_.data(), rows.data(), kT, dim_, turned.data());
    for (const Section& section : sections_) {
      gather(turned.data(), kT, section, part.data());
      PageInput inner = input;
      inner.rows = part.data();
      section.codec->encode(inner, page + section.page_at);
    }
  }

  // A^-1 is the transpose of A^-T.
  void decode(const std::byte* page, float* rows) const override {
    AlignedArray<float> turned(kT * dim_), part(kT * dim_);
    for (const Section& section : sections_) {
      section.codec->decode(page + section.page_at, part.data());
      for (size_t t = 0; t < kT; ++t) {
        std::copy_n(part.data() + t * section.count, section.count,
                    turned.data() + t * dim_ + section.first);
      }
    }
    apply_matrix(query_.data(), turned.data(), kT, dim_, rows);
  }

  size_t query_bytes(int num_queries) const override {
    size_t bytes = 0;
    for (const Section& section : sections_) bytes += section.codec->query_bytes(num_queries);
    return bytes;
  }

  void prepare_query(const float* queries, int num_queries, std::byte* prepared) const override {
    const auto count = static_cast<size_t>(num_queries);
    AlignedArray<float> turned(count * dim_), part(count * dim_);
    apply_matrix(query_t_.data(), queries, count, dim_, turned.data());
    for (const Section& section : sections_) {
      gather(turned.data(), count, section, part.data());
      section.codec->prepare_query(part.data(), num_queries, prepared);
      prepared += section.codec->query_bytes(num_queries);
    }
  }

  void scores(const PageRead& page, const std::byte* prepared, int num_queries,
              int64_t first_position, float* scores, size_t stride) const override {
    const auto count = static_cast<size_t>(num_queries);
    alignas(kAlignment) std::array<float, kStackQueries * kT> few;
    AlignedArray<float> many(count > kStackQueries ? count * kT : 0);
    float* part = count > kStackQueries ? many.data() : few.data();
    for (const Section& section : sections_) {
      const bool is_first = &section == sections_.data();
      const size_t at = std::min(section.page_at, page.next.size());
      section.codec->scores({page.bytes + section.page_at, page.next.subspan(at)}, prepared,
                            num_queries, first_position, is_first ? scores : part,
                            is_first ? stride : kT);
      prepared += section.codec->query_bytes(num_queries);
      if (is_first) continue;
      for (size_t q = 0; q < count; ++q) {
        for (size_t t = 0; t < kT; ++t) scores[q * stride + t] += part[q * kT + t];
      }
    }
  }

  void accumulate(const PageRead&, const float*, size_t, int, float*, size_t) const override {}

  std::string kernel_name() const override {
    const std::string inner = sections_.front().codec->kernel_name();
    return name_ + inner.substr(inner.rfind('/'));
  }

 private:
  // Channels of k' that have their bits in common.
  struct Section {
    size_t first, count;
    size_t page_at;
    std::unique_ptr<Codec> codec;
  };

  void add_section(size_t first, size_t count, int bits, CodecBinding binding) {
    binding.dim = static_cast<int>(count);
    binding.artifacts = nullptr;
    const FormatInfo& format = **find_format(section_format(bits, spec_));
    sections_.push_back({first, count, page_bytes_, definition_of(format).make(binding)});
    page_bytes_ += sections_.back().codec->page_bytes();
  }

  void gather(const float* rows, size_t num_rows, const Section& section, float* out) const {
    for (size_t r = 0; r < num_rows; ++r)
      std::copy_n(rows + r * dim_ + section.first, section.count, out + r * section.count);
  }

  std::string name_;
  TransformSpec spec_;
  size_t dim_;
  size_t page_bytes_ = 0;
  AlignedArray<float> encode_t_, query_, query_t_;
  std::vector<Section> sections_;
};

std::string head_name(const CodecBinding& binding) {
  return "layer " + std::to_string(binding.layer) + ", head " + std::to_string(binding.kv_head);
}

// Widths that the sections of a format can fill.
Status check_width(const FormatInfo& format, const CodecBinding& binding,
                   const TransformSpec& spec) {
  if (spec.equal_bits) {
    const FormatInfo& section = **find_format(section_format(spec.bits, spec));
    return definition_of(section).check(format, binding);
  }
  if (spec.bits % 2 == 0 || binding.dim % 32 == 0) return {};
  return unsupported(format.name + " can't store rows of " + std::to_string(binding.dim) +
                     " channels: its sections of odd bits are 32 channels wide");
}

// Bits that a section can have, as many as the name says.
Status check_bits(const FormatInfo& format, const CodecBinding& binding,
                  std::span<const float> widths, const TransformSpec& spec) {
  const std::string head = head_name(binding);
  int sum = 0;
  for (size_t first = 0, end = 0; first < widths.size(); first = end) {
    end = section_end(widths, first);
    const float width = widths[first];
    const bool known = std::find(kWidths.begin(), kWidths.end(), width) != kWidths.end();
    if (!known || (first > 0 && width > widths[first - 1]) ||
        (end - first) % section_channels(static_cast<int>(width)) != 0 ||
        !int_dim_fits(static_cast<int>(width), 0, static_cast<int>(end - first))) {
      return corrupt(format.name + ": the transform of " + head + " gives channels " +
                     std::to_string(first) + " to " + std::to_string(end - 1) + " " +
                     std::to_string(width) +
                     " bits each; wanted 8, 6, 5, 4, 3, 2 or 1, falling, in sections of 16 "
                     "channels, of 32 where the number is odd");
    }
    sum += static_cast<int>(width) * static_cast<int>(end - first);
  }
  if (sum == spec.bits * binding.dim) return {};
  return corrupt(format.name + ": the transform of " + head + " spends " + std::to_string(sum) +
                 " bits a token, wanted " + std::to_string(spec.bits * binding.dim));
}

std::string shortest(float x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(x));
  return text;
}

// The same bits for every channel.
Status check_equal_bits(const FormatInfo& format, const CodecBinding& binding,
                        std::span<const float> widths, const TransformSpec& spec) {
  for (size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] == static_cast<float>(spec.bits)) continue;
    return corrupt(format.name + ": the transform of " + head_name(binding) + " gives channel " +
                   std::to_string(i) + " " + shortest(widths[i]) + " bits, wanted " +
                   std::to_string(spec.bits));
  }
  return {};
}

// A head's artifact is whole: finite numbers, and bits that are the format's.
Status check_artifact(const FormatInfo& format, const CodecBinding& binding,
                      const TransformSpec& spec) {
  KVANT_TRY(check_width(format, binding, spec));
  const std::string head = head_name(binding);
  if (binding.artifacts == nullptr || binding.artifacts->tensor.empty()) {
    return unsupported(format.name +
                       " needs a calibrated transform of every head, and none was given for " +
                       head + " (kvant calibrate --for " + format.name + " makes them)");
  }
  const auto dim = static_cast<size_t>(binding.dim);
  const std::span<const float> tensor = binding.artifacts->tensor;
  if (tensor.size() != 2 * dim * dim + dim) {
    return corrupt(format.name + ": the transform of " + head + " has " +
                   std::to_string(tensor.size()) + " numbers, wanted " +
                   std::to_string(2 * dim * dim + dim));
  }
  if (!std::all_of(tensor.begin(), tensor.end(), [](float x) { return std::isfinite(x); }))
    return corrupt(format.name + ": the transform of " + head + " has a number that isn't finite");
  const auto check = spec.equal_bits ? check_equal_bits : check_bits;
  return check(format, binding, tensor.last(dim), spec);
}

FormatDefinition define(const TransformSpec& spec) {
  const int bits = spec.bits;
  const std::string number = std::to_string(bits);
  FormatDefinition d;
  d.info.name = (spec.equal_bits ? "bal" : "tc") + number;
  d.info.layout = d.info.name;
  d.info.summary =
      spec.equal_bits
          ? "keys balanced by calibrated statistics and rotated, " + number + " bits a channel"
          : "transform coding by calibrated statistics, " + number + " bits a channel on average";
  d.info.summary += ", scale and zero point per channel over the page";
  d.info.nominal_bits = bits;
  d.info.granularity = Granularity::kChannel;
  d.info.zero_point = true;
  d.info.scale_source = ScaleSource::kDynamic;
  d.info.for_values = false;
  d.info.needs.artifacts = true;
  d.check = [spec](const FormatInfo& format, const CodecBinding& binding) {
    return check_artifact(format, binding, spec);
  };
  d.make = [spec, name = d.info.name](const CodecBinding& binding) -> std::unique_ptr<Codec> {
    return std::make_unique<TransformCodec>(name, spec, binding);
  };
  d.band = [spec, bits](Side, int) -> DistortionBand {
    const bool fitted = bits <= 2 && !spec.equal_bits;
    const GridKind kind = fitted ? GridKind::kLeastSquares : GridKind::kZeroPoint;
    const double db = gauss_db(bits, kind, kPageTokens);
    return {db - 0.35, db + 0.35};
  };
  // A reflection, so that it isn't the identity and its inverse is itself.
  d.any_artifact = [bits](int dim) {
    const auto n = static_cast<size_t>(dim);
    std::vector<float> tensor(2 * n * n + n);
    for (size_t i = 0; i < n * n; ++i) {
      const float diagonal = i / n == i % n ? 1.0f : 0.0f;
      tensor[i] = tensor[n * n + i] = diagonal - 2.0f / static_cast<float>(dim);
    }
    std::fill(tensor.end() - dim, tensor.end(), static_cast<float>(bits));
    return tensor;
  };
  return d;
}

}  // namespace

std::vector<FormatDefinition> transform_family() {
  std::vector<FormatDefinition> formats;
  for (const int bits : {4, 3, 2}) formats.push_back(define({.bits = bits}));
  for (const int bits : {8, 4, 3, 2}) formats.push_back(define({.bits = bits, .equal_bits = true}));
  return formats;
}

}  // namespace kvant
