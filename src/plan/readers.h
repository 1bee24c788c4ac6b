// Readers: from a decoder's configuration to what each of its layers keeps. One function per
// mechanism, shared by all architectures that have it; architectures.def says which takes which.
#pragma once

#include "plan/config_reader.h"

namespace kvant {

// attention_readers.cc: K and V per head, of all tokens or of a window.
Status read_attention(const ConfigReader& config, ModelShape& shape);
Status read_unknown(const ConfigReader& config, ModelShape& shape);
Status read_step3p5(const ConfigReader& config, ModelShape& shape);
Status read_falcon(const ConfigReader& config, ModelShape& shape);
Status read_mpt(const ConfigReader& config, ModelShape& shape);  // attn_config
Status read_chatglm(const ConfigReader& config, ModelShape& shape);
Status read_smollm3(const ConfigReader& config, ModelShape& shape);
Status read_llama4(const ConfigReader& config, ModelShape& shape);
Status read_gemma4(const ConfigReader& config, ModelShape& shape);
Status read_mimo_v2(const ConfigReader& config, ModelShape& shape);
Status read_hunyuan(const ConfigReader& config, ModelShape& shape);
Status read_nemotron_nas(const ConfigReader& config, ModelShape& shape);
Status read_minimax_m3(const ConfigReader& config, ModelShape& shape);

// latent_readers.cc: multi-head latent attention, with an indexer where there is one.
Status read_latent(const ConfigReader& config, ModelShape& shape);
Status read_longcat(const ConfigReader& config, ModelShape& shape);  // two attentions a layer
Status read_deepseek_v4(const ConfigReader& config, ModelShape& shape);
Status read_kimi_linear(const ConfigReader& config, ModelShape& shape);

// state_readers.cc: state-space, linear-attention and short-convolution layers.
Status read_mamba(const ConfigReader& config, ModelShape& shape);
Status read_mamba2(const ConfigReader& config, ModelShape& shape);
Status read_jamba(const ConfigReader& config, ModelShape& shape);
Status read_granite_hybrid(const ConfigReader& config, ModelShape& shape);
Status read_falcon_h1(const ConfigReader& config, ModelShape& shape);
Status read_nemotron_h(const ConfigReader& config, ModelShape& shape);
Status read_zamba2(const ConfigReader& config, ModelShape& shape);
Status read_gated_delta(const ConfigReader& config, ModelShape& shape);  // Qwen3-Next, Qwen3.5
Status read_lightning(const ConfigReader& config, ModelShape& shape);
Status read_lfm2(const ConfigReader& config, ModelShape& shape);
Status read_recurrent_gemma(const ConfigReader& config, ModelShape& shape);
Status read_rwkv5(const ConfigReader& config, ModelShape& shape);
Status read_phi4flash(const ConfigReader& config, ModelShape& shape);

// cross_readers.cc: attention to what an encoder has seen.
Status read_t5(const ConfigReader& config, ModelShape& shape);
Status read_bart(const ConfigReader& config, ModelShape& shape);
Status read_mllama(const ConfigReader& config, ModelShape& shape);
Status read_encoder(const ConfigReader& config, ModelShape& shape);  // refuses: keeps no cache

}  // namespace kvant
