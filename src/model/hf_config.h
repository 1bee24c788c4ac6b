// The part of a Hugging Face config.json that families share, read into a DecoderSpec, and readers
// for the fields that some of them have. Every message names file and field.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "files/json.h"
#include "model/decoder_spec.h"

namespace kvant {

// An integer in [min, max]; `fallback` if the field is absent (fallback < min: the field is
// required). Older families' names of the common fields (n_embd, n_head, …) count as the field.
Result<int> read_int(const JsonObject& config, std::string_view name, int min, int max,
                     int fallback = -1);
Result<double> read_number(const JsonObject& config, std::string_view key, double fallback);
Result<bool> read_bool(const JsonObject& config, std::string_view key, bool fallback);

// hidden size, heads, head width (a declared head_dim wins), KV heads (as many as query heads where
// the field is absent, one with multi_query), layers (all alike, full attention, rope 0),
// feed-forward size, norms' epsilon, vocabulary, positions, activation, tied embeddings, names. No
// rope: read_hf_rope.
Status read_hf_common(const JsonObject& config, DecoderSpec& spec);

// Rope of a head of `head_dim` channels: rope_theta (default 10000), partial_rotary_factor, and
// rope_scaling or rope_parameters. `layer_type` picks an entry where rope_parameters holds one per
// layer type; "" takes it whole. Raises spec.max_positions to what a scaling reaches.
Result<Rope> read_hf_rope(const JsonObject& config, DecoderSpec& spec, int head_dim,
                          std::string_view layer_type = "");

// A decoder whose layers are all alike, on one rope: the common part, sliding_window on every layer
// (none where it is off, `absent` where the field isn't there), rope 0.
Status read_hf_sliding_decoder(const JsonObject& config, int absent, DecoderSpec& spec);

// sliding_window as a number of tokens; 0 if it is null, 0, −1 or switched off by
// use_sliding_window, `absent` if the field isn't there.
Result<int> read_hf_window(const JsonObject& config, int absent);
// Gives `window` to the layers that layer_types calls sliding; without the field, to those for
// which `slides` says so.
Status assign_windows(const JsonObject& config, int window,
                      const std::function<bool(int layer)>& slides, DecoderSpec& spec);

}  // namespace kvant
