// Formats: the registry of everything that a K or V page can be stored as, and how a user names
// them.
//
// A *format* describes one side (K or V) of one layer. A *pair* names both:
// `int8_token/int4_token_z_rot`. A *preset* (`int8`, `k8v4`, `int4`, …) is a name whose expansion
// depends on the model; anything stored names the expansion, never the preset. The grammar of a
// format's name is `<kind><bits>_<granularity>[_options]`; options are, in this order, `z` (zero
// point), `norm` (a factor per token beside the scales per channel), `lsq` or `hqq` (how scale and
// zero point are searched) and `rot` (rotation). Everything here is immutable after start-up and
// may be used from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant {

// Tokens of a page: the unit in which a cache is encoded, shared, moved and dropped.
inline constexpr int kPageTokens = 64;

enum class Side : uint8_t { kKey, kValue };
std::string_view side_name(Side side);  // "K" or "V"

// Over which elements one scale is shared.
enum class Granularity : uint8_t {
  kNone,     // no scale: floating-point formats
  kTensor,   // one given scale for everything
  kHead,     // one scale per page and head
  kToken,    // one per token
  kGroup,    // one per token and group of neighbouring channels
  kChannel,  // one per channel, over the 64 tokens of the page
};
std::string_view granularity_name(Granularity g);

enum class ScaleSource : uint8_t { kNone, kFixed, kDynamic, kGiven };
std::string_view scale_source_name(ScaleSource s);

// What a codec needs beside the page's rows (see formats/codec.h).
struct FormatNeeds {
  bool pre_rope_rows = false;   // K before RoPE
  bool previous_layer = false;  // the previous layer's decoded page
  bool key_rows = false;        // for V: the same page's decoded K
  bool artifacts = false;       // calibrated tensors
};

// A registered format; also what `kvant formats` prints.
struct FormatInfo {
  std::string name;
  std::string summary;  // one line
  std::string family;   // the file that defines it: "uniform_int"
  // The format whose bytes and read path this one shares: formats that differ only in how the
  // encoder searches for scale and zero point have one layout. Tests of the read path need one
  // format per layout.
  std::string layout;
  double nominal_bits = 0;
  Granularity granularity = Granularity::kNone;
  int group = 0;  // channels that share a scale, for kGroup
  bool zero_point = false;
  bool token_norm = false;  // rows are divided by a factor per token
  bool rotated = false;     // a seeded randomized Hadamard along the head dimension
  bool exact = false;       // f32, f16, bf16: pages are never sealed
  ScaleSource scale_source = ScaleSource::kNone;
  bool before_rope = false;
  bool for_keys = true;
  bool for_values = true;
  FormatNeeds needs;
};

// Every registered format (rotated variants included), in the order of formats.def.
std::span<const FormatInfo> all_formats();

// The format of that exact name; not_found names the closest known ones.
Result<const FormatInfo*> find_format(std::string_view name);

// Bits per element of one sealed page of `dim` channels, metadata and padding included. unsupported
// if the format can't store rows of this width (the message says which widths or groups work).
Result<double> sealed_bits(const FormatInfo& format, Side side, int dim);

// What a preset's choice depends on.
struct ModelTraits {
  bool qk_norm = false;  // the model normalises q and k per head (Qwen3, Gemma 3)
  // The format that the checkpoint declares for its cache, of the registry; null: none.
  const FormatInfo* declared = nullptr;
  std::vector<std::string> calibrated = {};  // formats that there are artifacts for
  int value_dim = 0;  // channels of a head of V, of the layer in question; 0: not known
};

struct Preset {
  std::string_view name;
  std::string_view summary;
};
std::span<const Preset> all_presets();
bool is_preset(std::string_view name);

// Formats of K and V of a layer, by canonical name.
struct FormatPair {
  std::string key;
  std::string value;
  bool operator==(const FormatPair&) const = default;
  // "bf16" if both sides are one format, else "K/V".
  std::string name() const { return key == value ? key : key + "/" + value; }
};

// Parses `int8`, `int8_token`, `int8_token/int4_token_z_rot`: a preset, one format for both sides,
// or a pair. A preset on one side of the slash means that side of the preset: `int8/int4`.
Result<FormatPair> parse_format_pair(std::string_view text, const ModelTraits& traits);

// What the format resolver must know of a layer.
struct LayerShape {
  int num_kv_heads = 0;
  int key_dim = 0;
  int value_dim = 0;  // 0: no V of its own (values are a range of K's stream)
  int window = 0;     // tokens that a sliding layer sees; 0: all
  bool quantizable =
      true;  // false: this layer's stream is kept exact whatever is asked (a latent, for now)
  std::vector<std::string> calibrated = {};  // formats that it has the artifacts for
};

// Layers of which one side is bf16, for one and the same reason, because it can't take the format
// that a preset or default put there.
struct FormatFallback {
  Side side = Side::kKey;
  std::string format;
  std::string reason;
  std::vector<int> layers = {};  // rising
};

struct ResolvedFormats {
  std::vector<FormatPair> requested;  // one per layer
  std::vector<FormatPair> effective;
  std::vector<FormatFallback> fallbacks;  // where they differ
  // A sentence for each of the fallbacks, then one for each format that is read slowly.
  std::vector<std::string> notes;
};

// Resolves `--kv` and `--kv-layers` for every layer of a model; an empty `kv` means `auto`.
// `overrides` is `;`-separated items `LAYERS=FORMAT` where LAYERS is `0-3`, `7`, `-1` (from the
// end), `sliding`, `full`, or a comma list of these: "0-1=bf16;28-29=bf16". Ranges that overlap,
// are reversed or leave the model are errors. A layer that can't take its format is an error when
// the format was named for it, and falls back to bf16 with a note when a preset or default put it
// there (never under `strict`, which refuses formats without a kernel, too).
Result<ResolvedFormats> resolve_formats(std::string_view kv, std::string_view overrides,
                                        std::span<const LayerShape> layers,
                                        const ModelTraits& traits, bool strict);

}  // namespace kvant
