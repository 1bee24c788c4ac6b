#!/usr/bin/env python3
"""Writes model.gguf beside the tiny Hugging Face directories of tests/data/models, as llama.cpp's converter lays them out.

The same weights in the other file format: names and metadata keys of each architecture, Q and K rows of the Llama
architecture reordered to adjacent rotary pairs, Gemma's norms stored with their 1 added, experts stacked, RoPE factors as
tensors. Matrices keep the directory's 16-bit type, vectors become F32. The vocabulary is a placeholder of byte tokens.
Where Transformers can read an architecture's tensors from GGUF, they are loaded under the directory's config.json and the
logits compared with the goldens, which checks names, reordering and offsets, though not the metadata.

usage: make_tiny_gguf.py [--models tests/data/models]     (needs gguf, torch, transformers, safetensors)
"""

import argparse
import json
import math
import os
import pathlib
import re

os.environ["HF_HUB_OFFLINE"] = "1"

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

# directory: (architecture, whether Transformers' own GGUF reader knows the tensors)
MODELS = {
    "llama-rope3": ("llama", True),
    "qwen2": ("qwen2", True),
    "qwen3": ("qwen3", True),
    "gemma2": ("gemma2", True),
    "gemma3": ("gemma3", True),
    "phi3": ("phi3", True),
    "phi3-partial": ("phi3", True),
    "mixtral": ("llama", False),  # it takes the Llama architecture for dense
    "qwen3_moe": ("qwen3moe", False),  # it loses the layer without experts
    "deepseek_v2-lite": ("deepseek2", False),  # unknown to it; written with K and V's up-projections apart, as now
    "deepseek_v2": ("deepseek2", False),  # written with them joined, as files of 2024 have them
}

NAMES = [
    (r"model\.embed_tokens\.", "token_embd."),
    (r"model\.norm\.", "output_norm."),
    (r"lm_head\.", "output."),
    (r"model\.layers\.(\d+)\.", r"blk.\1."),
    (r"self_attn\.([qkv])_proj\.", r"attn_\1."),
    (r"self_attn\.([qk])_norm\.", r"attn_\1_norm."),
    (r"self_attn\.qkv_proj\.", "attn_qkv."),
    (r"self_attn\.o_proj\.", "attn_output."),
    (r"self_attn\.q_a_proj\.", "attn_q_a."),
    (r"self_attn\.q_a_layernorm\.", "attn_q_a_norm."),
    (r"self_attn\.q_b_proj\.", "attn_q_b."),
    (r"self_attn\.kv_a_proj_with_mqa\.", "attn_kv_a_mqa."),
    (r"self_attn\.kv_a_layernorm\.", "attn_kv_a_norm."),
    (r"self_attn\.kv_b_proj\.", "attn_kv_b."),
    (r"input_layernorm\.", "attn_norm."),
    (r"pre_feedforward_layernorm\.", "ffn_norm."),
    (r"post_feedforward_layernorm\.", "post_ffw_norm."),
    (r"(mlp|block_sparse_moe)\.gate\.", "ffn_gate_inp."),
    (r"mlp\.shared_experts\.(gate|up|down)_proj\.", r"ffn_\1_shexp."),
    (r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.", r"ffn_\2_exps.\1."),
    (r"block_sparse_moe\.experts\.(\d+)\.w1\.", r"ffn_gate_exps.\1."),
    (r"block_sparse_moe\.experts\.(\d+)\.w2\.", r"ffn_down_exps.\1."),
    (r"block_sparse_moe\.experts\.(\d+)\.w3\.", r"ffn_up_exps.\1."),
    (r"mlp\.gate_up_proj\.", "ffn_up."),
    (r"mlp\.(gate|up|down)_proj\.", r"ffn_\1."),
]


def gguf_name(name, architecture):
    after_attention = "post_attention_norm." if architecture.startswith("gemma") else "ffn_norm."
    for pattern, replacement in NAMES + [(r"post_attention_layernorm\.", after_attention)]:
        name = re.sub(pattern, replacement, name)
    return name


def interleave_rotary(weight, heads):
    """Rows (j, j + d/2) of every head become rows (2j, 2j + 1)."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def tensors_of(directory, architecture, config):
    loaded = {}
    for path in sorted(directory.glob("*.safetensors")):
        loaded |= load_file(path)
    experts, out = {}, {}
    heads = config["num_attention_heads"]
    for name, weight in loaded.items():
        target = gguf_name(name, architecture)
        if architecture == "llama" and re.search(r"attn_[qk]\.", target):
            kv_heads = config.get("num_key_value_heads", heads)
            weight = interleave_rotary(weight, heads if "attn_q." in target else kv_heads)
        if architecture.startswith("gemma") and target.endswith("norm.weight"):
            weight = weight.float() + 1.0
        if stacked := re.fullmatch(r"(.*_exps)\.(\d+)\.weight", target):
            experts.setdefault(stacked[1] + ".weight", {})[int(stacked[2])] = weight
        else:
            out[target] = weight
    for target, parts in experts.items():
        out[target] = torch.stack([parts[i] for i in range(len(parts))])
    if directory.name == "deepseek_v2-lite":
        split_latent(out, config)
    return out


def split_latent(tensors, config):
    """attn_kv_b becomes attn_k_b, transposed per head, and attn_v_b."""
    nope, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]
    for name in [n for n in tensors if n.endswith("attn_kv_b.weight")]:
        joint = tensors.pop(name).reshape(config["num_attention_heads"], -1, rank)
        tensors[name.replace("kv_b", "k_b")] = joint[:, :nope].transpose(1, 2).contiguous()
        tensors[name.replace("kv_b", "v_b")] = joint[:, nope:].contiguous()


def llama3_factors(scaling, dim, base):
    factors = []
    for j in range(dim // 2):
        wavelength = 2 * math.pi * base ** (2 * j / dim)
        low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
        high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
        smooth = (scaling["original_max_position_embeddings"] / wavelength - scaling["low_freq_factor"]) / (
            scaling["high_freq_factor"] - scaling["low_freq_factor"]
        )
        middle = 1 / ((1 - smooth) / scaling["factor"] + smooth) if high < wavelength < low else None
        factors.append(1.0 if wavelength < high else scaling["factor"] if wavelength > low else middle)
    return torch.tensor(factors)


def add_vocabulary(writer, size):
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    pieces += [f"▁{i}" for i in range(size - len(pieces))]
    types = [gguf.TokenType.UNKNOWN] + 2 * [gguf.TokenType.CONTROL] + 256 * [gguf.TokenType.BYTE]
    types += [gguf.TokenType.NORMAL] * (size - len(types))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(i) for i in range(size)])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def add_metadata(writer, config, architecture, tensors):
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    rotary_dim = int(head_dim * config.get("partial_rotary_factor", 1.0))
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("type", scaling.get("rope_type"))
    base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    is_latent_cache = "blk.0.attn_k_b.weight" in tensors
    writer.add_head_count_kv(1 if is_latent_cache else config.get("num_key_value_heads", heads))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(base)
    writer.add_vocab_size(config["vocab_size"])
    if architecture == "deepseek2":
        add_latent_metadata(writer, config, scaling, is_latent_cache)
    else:
        writer.add_rope_dimension_count(rotary_dim)
        if head_dim != config["hidden_size"] // heads:
            writer.add_key_length(head_dim)
            writer.add_value_length(head_dim)
    if architecture in ("gemma2", "gemma3", "phi3") and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if architecture in ("gemma2", "gemma3"):
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(scaling, rotary_dim, base)
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        stretch = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
        for length in ("short", "long"):
            tensors[f"rope_factors_{length}.weight"] = torch.tensor(scaling[f"{length}_factor"])
    experts = config.get("num_local_experts", config.get("num_experts", config.get("n_routed_experts")))
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if "moe_intermediate_size" in config:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def add_latent_metadata(writer, config, scaling, is_latent_cache):
    key_dim = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    if is_latent_cache:
        writer.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"])
        writer.add_value_length(config["kv_lora_rank"])
        writer.add_key_length_mla(key_dim)
        writer.add_value_length_mla(config["v_head_dim"])
    else:
        writer.add_key_length(key_dim)
        writer.add_value_length(config["v_head_dim"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if config["topk_method"] == "group_limited_greedy":
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def add_tensor(writer, name, weight):
    if weight.dim() == 1 or name.endswith("ffn_gate_inp.weight") or weight.dtype == torch.float32:
        writer.add_tensor(name, weight.float().numpy())
    elif weight.dtype == torch.float16:
        writer.add_tensor(name, weight.numpy())
    else:
        raw = weight.contiguous().view(torch.uint8).numpy()
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)


def write(directory, architecture):
    config = json.loads((directory / "config.json").read_text())
    tensors = tensors_of(directory, architecture, config)
    path = directory / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {directory.name}")
    add_metadata(writer, config, architecture, tensors)
    add_vocabulary(writer, config["vocab_size"])
    for name, weight in tensors.items():
        add_tensor(writer, name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@torch.no_grad()
def deviation(directory):
    """Largest difference of Transformers' reading of the GGUF from the goldens, relative to their spread."""
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        gguf_file="model.gguf",
        config=AutoConfig.from_pretrained(directory),
        dtype=torch.float32,
        attn_implementation="eager",
    ).eval()
    rows = []
    for prompt in json.loads((directory / "goldens.json").read_text())["prompts"]:
        logits = model(input_ids=torch.tensor([prompt["ids"]]), use_cache=False).logits[0]
        rows.append(logits[prompt["rows"]].numpy())
    goldens = np.load(directory / "goldens.npy")
    return np.abs(np.concatenate(rows) - goldens).max() / np.ptp(goldens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tests/data/models", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    for name, (architecture, readable) in MODELS.items():
        path = write(args.models / name, architecture)
        seen = f", Transformers reads it with deviation {deviation(path.parent):.1e}" if readable else ""
        print(f"{path}: {path.stat().st_size // 1024} KiB{seen}")


if __name__ == "__main__":
    main()
