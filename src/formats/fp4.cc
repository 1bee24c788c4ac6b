// Family fp4: blocks of E2M1 elements (fp4_types.h) of a token's neighbouring channels, with scales
// of 8 bits.
//
//   MXFP4: x̂ = 2^(e−127)·element, 32 channels; e of ⌊log2 max|x|⌋ − 2 (OCP Microscaling Formats,
//   2023); what is beyond 6·2^(e−127) saturates
//   NVFP4: x̂ = s·E4M3·element, 16 channels; E4M3 of max|x| / (6·s), at least 2^-9, and 1 for a
//   block of zeros (NVIDIA's TensorRT Model Optimizer)
//
// NVFP4's float32 scale s is 1 (`nvfp4`), given for all pages (`nvfp4_tensor`), or max|x| / (6·448)
// of the page (`nvfp4_head`).
//
// A page is [codes][block scales][s, of nvfp4_head], padded to 64 bytes. Codes are laid out as
// 4-bit integers are, and read like them: the kernels look up each code's integer, twice its value.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "formats/family.h"
#include "formats/fp4_types.h"
#include "formats/fp8_types.h"
#include "formats/int_page_codec.h"
#include "formats/stored_scale.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;
constexpr int kBits = 4;
constexpr int kLargestExponent = 2;       // of an element: 6 = 1.5·2²
constexpr float kSmallestE4m3 = 0x1p-9f;  // above 0

struct Fp4Spec {
  std::string_view name;
  std::string_view summary;
  BlockScale block_type;
  size_t group;  // channels of a block
  // Of the float32 scale: kNone is 1, kTensor given, kHead one a page.
  Granularity second = Granularity::kNone;
  double gauss_db = 0;  // signal to noise of standard normal rows (tools/make_format_goldens.py)
};

constexpr Fp4Spec kSpecs[] = {
    {"nvfp4", "NVFP4: E2M1 in blocks of 16 with E4M3 scales, tensor scale fixed at 1",
     BlockScale::kE4m3, 16, Granularity::kNone, 20.45},
    {"nvfp4_tensor", "NVFP4: E2M1 in blocks of 16 with E4M3 scales, tensor scale given",
     BlockScale::kE4m3, 16, Granularity::kTensor, 20.45},
    {"nvfp4_head", "NVFP4: E2M1 in blocks of 16 with E4M3 scales, tensor scale per page and head",
     BlockScale::kE4m3, 16, Granularity::kHead, 20.45},
    {"mxfp4", "MXFP4: E2M1 in blocks of 32 with power-of-two scales", BlockScale::kE8m0, 32,
     Granularity::kNone, 18.80},
};

float largest_of(const float* x, size_t n) {
  float most = 0;
  for (size_t i = 0; i < n; ++i) {
    const float magnitude = x[i] < 0 ? -x[i] : x[i];
    most = magnitude > most ? magnitude : most;
  }
  return saturate(most);
}

class Fp4Codec final : public IntPageCodec {
 public:
  Fp4Codec(const Fp4Spec& spec, const CodecBinding& binding)
      : IntPageCodec(std::string(spec.name), binding, kBits, ScaleLayout::kToken,
                     static_cast<size_t>(binding.dim) / spec.group),
        spec_(spec),
        second_at_(code_bytes_ + num_groups_ * kT) {
    if (spec.second == Granularity::kTensor) fixed_ = binding.artifacts->tensor_scale;
  }

  size_t page_bytes() const override {
    const size_t second = spec_.second == Granularity::kHead ? sizeof(float) : 0;
    return round_up(second_at_ + second, kAlignment);
  }

  void encode(const PageInput& input, std::byte* page) const override {
    std::memset(page + code_bytes_, 0, page_bytes() - code_bytes_);
    AlignedArray<uint8_t> codes(kT * dim_);
    float second = fixed_;
    if (spec_.second == Granularity::kHead) {
      second = page_scale(largest_of(input.rows, kT * dim_));
      std::memcpy(page + second_at_, &second, sizeof second);
    }
    auto* scales = reinterpret_cast<uint8_t*>(page + code_bytes_);
    for (size_t g = 0; g < num_groups_; ++g) {
      for (size_t t = 0; t < kT; ++t) {
        const size_t start = t * dim_ + g * spec_.group;
        const float* run = input.rows + start;
        const float most = largest_of(run, spec_.group);
        float inverse = 0;
        if (spec_.block_type == BlockScale::kE8m0) {
          scales[g * kT + t] = to_e8m0(most, kLargestExponent);
          inverse = e8m0_inverse(scales[g * kT + t]);
        } else {
          scales[g * kT + t] = block_scale(most, second);
          inverse = 1.0f / (e4m3_to_f32(scales[g * kT + t]) * second);
        }
        for (size_t i = 0; i < spec_.group; ++i)
          codes[start + i] = to_e2m1(saturate(run[i]) * inverse);
      }
    }
    pack(codes.data(), page);
  }

  void decode(const std::byte* page, float* rows) const override {
    AlignedArray<uint8_t> codes(kT * dim_);
    unpack(page, codes.data());
    const IntPage view = view_of(page);
    for (size_t t = 0; t < kT; ++t) {
      for (size_t i = 0; i < dim_; ++i) {
        const uint8_t byte = view.block_scale[i / spec_.group * kT + t];
        // `unit` belongs to elements times 2.
        const float scale = spec_.block_type == BlockScale::kE8m0
                                ? e8m0_to_f32(byte)
                                : e4m3_to_f32(byte) * (view.unit * 2.0f);
        rows[t * dim_ + i] = scale * kE2m1Values[codes[t * dim_ + i]];
      }
    }
  }

 private:
  IntPage view_of(const std::byte* page) const override {
    float second = fixed_;
    if (spec_.second == Granularity::kHead) std::memcpy(&second, page + second_at_, sizeof second);
    return {.codes = reinterpret_cast<const uint8_t*>(page),
            .scale = nullptr,
            .zero = nullptr,
            .factor = nullptr,
            .bits = kBits,
            .offset = kE2m1Offset,
            .dim = static_cast<int>(dim_),
            .num_groups = static_cast<int>(num_groups_),
            .layout = ScaleLayout::kToken,
            .block_scale = reinterpret_cast<const uint8_t*>(page + code_bytes_),
            .block_type = spec_.block_type,
            .unit = 0.5f * second,
            .levels = kE2m1Levels.data()};
  }

  // A page's float32 scale; 1 for a page of zeros, and never so small that its inverse overflows.
  static float page_scale(float most) {
    if (most == 0) return 1.0f;
    return std::max(most / (kE2m1Largest * E4m3::kLargest), 0x1p-100f);
  }

  // NVFP4's scale of a block, as E4M3. A block that rounds to zeros counts as zeros.
  static uint8_t block_scale(float most, float second) {
    const float fitted = most / (kE2m1Largest * second);
    const uint8_t code = E4m3::encode(fitted < kSmallestE4m3 ? kSmallestE4m3 : fitted);
    const bool vanishes = to_e2m1(most * (1.0f / (e4m3_to_f32(code) * second))) == 0;
    return vanishes ? E4m3::encode(1.0f) : code;
  }

  Fp4Spec spec_;
  size_t second_at_;  // where the page's float32 scale lies, of nvfp4_head
  float fixed_ = 1.0f;
};

FormatDefinition define(const Fp4Spec& spec) {
  FormatDefinition d;
  d.info.name = spec.name;
  d.info.summary = spec.summary;
  d.info.nominal_bits = kBits;
  d.info.granularity = Granularity::kGroup;
  d.info.group = static_cast<int>(spec.group);
  d.info.scale_source = ScaleSource::kDynamic;
  if (spec.second == Granularity::kTensor) d.info.scale_source = ScaleSource::kGiven;
  if (spec.second == Granularity::kNone && spec.block_type == BlockScale::kE4m3)
    d.info.scale_source = ScaleSource::kFixed;
  d.make = [spec](const CodecBinding& binding) -> std::unique_ptr<Codec> {
    return std::make_unique<Fp4Codec>(spec, binding);
  };
  d.band = [db = spec.gauss_db](Side, int) { return DistortionBand{db - 0.3, db + 0.3}; };
  d.idempotent = spec.second != Granularity::kHead;  // its float32 rounds again
  return d;
}

}  // namespace

std::vector<FormatDefinition> fp4_family() {
  std::vector<FormatDefinition> formats;
  for (const Fp4Spec& spec : kSpecs) formats.push_back(define(spec));
  return formats;
}

}  // namespace kvant
