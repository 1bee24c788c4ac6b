// Family mxfp8: FP8 elements in blocks of 32 neighbouring channels of a token, each block with a
// scale that is a power of two (OCP Microscaling Formats, 2023).
//
//   x̂ = 2^(e−127)·element, e of ⌊log2 max|x|⌋ − emax; emax is 8 (E4M3) or 15 (E5M2)
//
// Elements beyond the type's largest value saturate. A page is the elements, laid out as those of
// fp8_e4m3 are (floats.cc), then the scales [D/32][64] as E8M0.
#include <algorithm>
#include <array>
#include <string>

#include "base/bytes.h"
#include "formats/family.h"
#include "formats/float_page_codec.h"
#include "formats/fp4_types.h"
#include "formats/fp8_types.h"
#include "formats/stored_scale.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;
constexpr size_t kGroup = kMxBlock;

struct Mxfp8Spec {
  std::string_view name;
  std::string_view summary;
  FloatType type;
  int emax;         // 2^emax is the largest power of two that an element holds
  double gauss_db;  // signal to noise of standard normal rows (tools/make_format_goldens.py)
};

constexpr Mxfp8Spec kSpecs[] = {
    {"mxfp8_e4m3", "MXFP8: E4M3 in blocks of 32 with power-of-two scales", FloatType::kE4m3, 8,
     30.65},
    {"mxfp8_e5m2", "MXFP8: E5M2 in blocks of 32 with power-of-two scales", FloatType::kE5m2, 15,
     25.36},
};

class Mxfp8Codec final : public FloatPageCodec {
 public:
  Mxfp8Codec(const Mxfp8Spec& spec, const CodecBinding& binding)
      : FloatPageCodec(std::string(spec.name), binding), spec_(spec), element_bytes_(kT * dim()) {}

  size_t page_bytes() const override { return element_bytes_ + dim() / kGroup * kT; }

  void encode(const PageInput& input, std::byte* page) const override {
    auto* elements = reinterpret_cast<uint8_t*>(page);
    auto* scales = elements + element_bytes_;
    std::array<uint8_t, kGroup> codes;
    for (size_t t = 0; t < kT; ++t) {
      for (size_t g = 0; g < dim() / kGroup; ++g) {
        const float* run = input.rows + t * dim() + g * kGroup;
        uint8_t& scale = scales[g * kT + t];
        scale = to_e8m0(largest_of(run), spec_.emax);
        const float inverse = e8m0_inverse(scale);
        const bool e4m3 = spec_.type == FloatType::kE4m3;
        for (size_t i = 0; i < kGroup; ++i) {
          const float x = saturate(run[i]) * inverse;
          codes[i] = e4m3 ? E4m3::encode(x) : E5m2::encode(x);
        }
        for (size_t i = 0; i < kGroup; ++i) elements[at(t, g * kGroup + i)] = codes[i];
      }
    }
  }

  void decode(const std::byte* page, float* rows) const override {
    const auto* elements = reinterpret_cast<const uint8_t*>(page);
    const uint8_t* scales = elements + element_bytes_;
    for (size_t t = 0; t < kT; ++t) {
      for (size_t i = 0; i < dim(); ++i) {
        const uint8_t code = elements[at(t, i)];
        const float element =
            spec_.type == FloatType::kE4m3 ? e4m3_to_f32(code) : e5m2_to_f32(code);
        rows[t * dim() + i] = e8m0_to_f32(scales[i / kGroup * kT + t]) * element;
      }
    }
  }

 private:
  static float largest_of(const float* run) {
    float most = 0;
    for (size_t i = 0; i < kGroup; ++i) {
      const float magnitude = run[i] < 0 ? -run[i] : run[i];
      most = magnitude > most ? magnitude : most;
    }
    return saturate(most);
  }

  // Where the element of a token and channel lies.
  size_t at(size_t token, size_t channel) const {
    return side_ == Side::kKey ? channel * kT + token : token * dim() + channel;
  }

  FloatPage view_of(const std::byte* page) const override {
    return {.data = page,
            .type = spec_.type,
            .dim = static_cast<int>(dim()),
            .num_tokens = static_cast<int>(kT),
            .scale = nullptr,
            .layout = ScaleLayout::kToken,
            .block_scale = reinterpret_cast<const uint8_t*>(page + element_bytes_)};
  }

  Mxfp8Spec spec_;
  size_t element_bytes_;
};

FormatDefinition define(const Mxfp8Spec& spec) {
  FormatDefinition d;
  d.info.name = spec.name;
  d.info.summary = spec.summary;
  d.info.nominal_bits = 8;
  d.info.granularity = Granularity::kGroup;
  d.info.group = static_cast<int>(kGroup);
  d.info.scale_source = ScaleSource::kDynamic;
  d.make = [spec](const CodecBinding& binding) -> std::unique_ptr<Codec> {
    return std::make_unique<Mxfp8Codec>(spec, binding);
  };
  d.band = [db = spec.gauss_db](Side, int) { return DistortionBand{db - 0.3, db + 0.3}; };
  d.idempotent = true;
  return d;
}

}  // namespace

std::vector<FormatDefinition> mxfp8_family() {
  std::vector<FormatDefinition> formats;
  for (const Mxfp8Spec& spec : kSpecs) formats.push_back(define(spec));
  return formats;
}

}  // namespace kvant
