// Family floats: the exact types f32, f16 and bf16, and FP8 (E4M3, E5M2) with and without a scale.
//
//   x̂ = scale·float(code)
//
// A K page is [D][64], a V page [64][D] of the type, then the scales (binary16) that the page
// holds, padded to 64 bytes. FP8 has the scale 1 (no suffix), a given one (`tensor`), max|x| /
// largest per page or one given for the head (`head`), or per token. Exact types are the baseline:
// the cache keeps their pages itself and never seals them, but they are codecs like any other.
// Every conversion saturates at the type's largest finite value, so that neither infinity nor NaN
// is stored.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "formats/family.h"
#include "formats/float_page_codec.h"
#include "formats/fp8_types.h"
#include "formats/stored_scale.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;

// What a stored element is, by FloatType.
struct Element {
  std::string_view name;
  std::string_view summary;
  FloatType type;
  float largest;
  double gauss_db;  // signal to noise of standard normal values
};

constexpr Element kElements[] = {
    {"f32", "IEEE binary32, exact", FloatType::kF32, 0, 0},
    {"f16", "IEEE binary16, exact", FloatType::kF16, 0, 73.8},
    {"bf16", "bfloat16, exact: the baseline", FloatType::kBf16, 0, 55.7},
    {"fp8_e4m3", "OCP FP8 E4M3", FloatType::kE4m3, E4m3::kLargest, 31.8},
    {"fp8_e5m2", "OCP FP8 E5M2", FloatType::kE5m2, E5m2::kLargest, 25.8},
};

const Element& element_of(FloatType type) { return kElements[static_cast<size_t>(type)]; }

uint16_t to_bf16_saturated(float x) {
  const uint16_t code = f32_to_bf16(x);
  return (code & 0x7fff) == 0x7f80 ? static_cast<uint16_t>(code - 1) : code;
}

template <typename T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Converts n values times `factor` to elements `step` apart.
void convert(const float* x, size_t n, float factor, FloatType type, std::byte* to, size_t step) {
  step *= float_bytes(type);
  switch (type) {
    case FloatType::kF32:
      for (size_t i = 0; i < n; ++i) put(to + i * step, x[i]);
      return;
    case FloatType::kF16:
      for (size_t i = 0; i < n; ++i) put(to + i * step, f32_to_f16_saturated(x[i]));
      return;
    case FloatType::kBf16:
      for (size_t i = 0; i < n; ++i) put(to + i * step, to_bf16_saturated(x[i]));
      return;
    case FloatType::kE4m3:
      for (size_t i = 0; i < n; ++i) put(to + i * step, E4m3::encode(x[i] * factor));
      return;
    case FloatType::kE5m2:
      for (size_t i = 0; i < n; ++i) put(to + i * step, E5m2::encode(x[i] * factor));
      return;
  }
}

float element_value(const std::byte* at, FloatType type) {
  uint16_t half = 0;
  if (type == FloatType::kF16 || type == FloatType::kBf16) std::memcpy(&half, at, sizeof half);
  switch (type) {
    case FloatType::kF32: {
      float value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case FloatType::kF16:
      return f16_to_f32(half);
    case FloatType::kBf16:
      return bf16_to_f32(half);
    case FloatType::kE4m3:
      return e4m3_to_f32(std::to_integer<uint8_t>(*at));
    case FloatType::kE5m2:
      return e5m2_to_f32(std::to_integer<uint8_t>(*at));
  }
  return 0;
}

class FloatCodec final : public FloatPageCodec {
 public:
  FloatCodec(std::string name, FloatType type, Granularity granularity, const CodecBinding& binding)
      : FloatPageCodec(std::move(name), binding),
        type_(type),
        granularity_(granularity),
        element_bytes_(kT * dim() * float_bytes(type)) {
    if (granularity == Granularity::kTensor) given_ = f32_to_f16(binding.artifacts->tensor_scale);
    if (granularity == Granularity::kHead) {
      meta_bytes_ = sizeof(uint16_t);
      if (binding.artifacts != nullptr) given_ = f32_to_f16(binding.artifacts->head_scale);
    }
    if (granularity == Granularity::kToken) meta_bytes_ = kT * sizeof(uint16_t);
  }

  size_t page_bytes() const override { return round_up(element_bytes_ + meta_bytes_, kAlignment); }

  void encode(const PageInput& input, std::byte* page) const override {
    std::memset(page + element_bytes_, 0, page_bytes() - element_bytes_);
    auto* scales = reinterpret_cast<uint16_t*>(page + element_bytes_);
    if (granularity_ == Granularity::kHead)
      scales[0] = given_ != 0 ? given_ : fitted_scale(input.rows, kT * dim());
    if (granularity_ == Granularity::kToken) {
      for (size_t t = 0; t < kT; ++t) scales[t] = fitted_scale(input.rows + t * dim(), dim());
    }
    const size_t size = float_bytes(type_);
    const FloatPage view = view_of(page);
    for (size_t t = 0; t < kT; ++t) {
      const float factor = 1.0f / scale_of(view, t);
      const bool key = side_ == Side::kKey;
      convert(input.rows + t * dim(), dim(), factor, type_, page + (key ? t : t * dim()) * size,
              key ? kT : 1);
    }
  }

  void decode(const std::byte* page, float* rows) const override {
    const size_t size = float_bytes(type_);
    const FloatPage view = view_of(page);
    for (size_t t = 0; t < kT; ++t) {
      const float scale = scale_of(view, t);
      for (size_t i = 0; i < dim(); ++i) {
        const size_t at = side_ == Side::kKey ? i * kT + t : t * dim() + i;
        rows[t * dim() + i] = element_value(page + at * size, type_) * scale;
      }
    }
  }

 private:
  FloatPage view_of(const std::byte* page) const override {
    const auto* stored = reinterpret_cast<const uint16_t*>(page + element_bytes_);
    const bool given = granularity_ == Granularity::kTensor;
    return {
        .data = page,
        .type = type_,
        .dim = static_cast<int>(dim()),
        .num_tokens = static_cast<int>(kT),
        .scale = granularity_ == Granularity::kNone ? nullptr : (given ? &given_ : stored),
        .layout = granularity_ == Granularity::kToken ? ScaleLayout::kToken : ScaleLayout::kPage};
  }

  float scale_of(const FloatPage& view, size_t token) const {
    if (view.scale == nullptr) return 1.0f;
    return f16_to_f32(view.scale[view.layout == ScaleLayout::kToken ? token : 0]);
  }

  // The scale that puts the largest of n magnitudes on the type's largest value; n is a multiple
  // of 16.
  uint16_t fitted_scale(const float* x, size_t n) const {
    constexpr size_t kLanes = 16;
    std::array<float, kLanes> most{};
    for (size_t i = 0; i < n; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) {
        const float magnitude = x[i + l] < 0 ? -x[i + l] : x[i + l];
        most[l] = magnitude > most[l] ? magnitude : most[l];
      }
    }
    const float largest = saturate(*std::max_element(most.begin(), most.end()));
    return store_scale(largest / element_of(type_).largest);
  }

  FloatType type_;
  Granularity granularity_;
  size_t element_bytes_;
  size_t meta_bytes_ = 0;
  uint16_t given_ = 0;  // 0: none
};

FormatDefinition define(const Element& element, Granularity granularity) {
  const bool exact = float_bytes(element.type) > 1;
  FormatDefinition d;
  d.info.name = element.name;
  d.info.summary = element.summary;
  d.info.nominal_bits = static_cast<double>(8 * float_bytes(element.type));
  d.info.granularity = granularity;
  d.info.exact = exact;
  d.info.scale_source = ScaleSource::kDynamic;
  if (granularity == Granularity::kNone) {
    d.info.scale_source = exact ? ScaleSource::kNone : ScaleSource::kFixed;
    if (!exact) d.info.summary += ", scale fixed at 1";
  } else {
    d.info.name += "_" + std::string(granularity_name(granularity));
    if (granularity == Granularity::kTensor) {
      d.info.scale_source = ScaleSource::kGiven;
      d.info.summary += ", one scale given for all pages";
    } else {
      d.info.summary += granularity == Granularity::kHead ? ", one scale per page and head"
                                                          : ", one scale per token and head";
    }
  }
  d.make = [name = d.info.name, type = element.type,
            granularity](const CodecBinding& binding) -> std::unique_ptr<Codec> {
    return std::make_unique<FloatCodec>(name, type, granularity, binding);
  };
  d.band = [db = element.gauss_db](Side, int) { return DistortionBand{db - 0.6, db + 0.6}; };
  d.idempotent = true;
  return d;
}

}  // namespace

std::vector<FormatDefinition> floats_family() {
  std::vector<FormatDefinition> formats;
  for (const FloatType type : {FloatType::kF32, FloatType::kF16, FloatType::kBf16}) {
    formats.push_back(define(element_of(type), Granularity::kNone));
  }
  for (const FloatType type : {FloatType::kE4m3, FloatType::kE5m2}) {
    for (const Granularity granularity :
         {Granularity::kNone, Granularity::kTensor, Granularity::kHead, Granularity::kToken}) {
      formats.push_back(define(element_of(type), granularity));
    }
  }
  return formats;
}

}  // namespace kvant
