#!/usr/bin/env python3
"""Makes the tiny random models of tests/data/models and what Transformers computes from them.

One directory per recipe: config.json as published checkpoints of that family spell it, model.safetensors (or shards),
goldens.json (prompts, which rows of their logits are kept, greedy continuations) and goldens.npy (those logits, float32).
Weights are drawn from a seeded normal distribution, wide enough that attention is peaked and every wrong factor shows.
A seed is taken only if no greedy choice and no choice of experts is close to a tie, so that float32 rounding can't flip
one. The reference runs in float32 with eager attention and no cache, from the files as saved.

usage: make_tiny_models.py [--only NAME[,NAME]] [--out tests/data/models]     (needs torch, transformers, safetensors)
"""

import argparse
import json
import os
import pathlib
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

VOCAB = 288
GREEDY_TOKENS = 16
PROMPT_LENGTHS = {"short": 5, "page": 77, "long": 200}
KEPT_ROWS = {
    "short": [0, 1, 4],
    "page": [63, 64, 76],
    "long": [0, 47, 48, 95, 127, 128, 191, 199],
}

BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
GEMMA = {
    "hidden_size": 96,
    "head_dim": 32,
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": None,  # published files leave it out: tied is the family's default
    "num_key_value_heads": 1,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MOE = {"num_hidden_layers": 2, "intermediate_size": 64}
LATENT = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "routed_scaling_factor": 1.0,
}

# name: (fields over BASE, where None removes a field; dtype of the file; number of shards)
RECIPES = {
    "llama": ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}, "bf16", 2),
    "llama-rope3": (
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "rope_scaling": LLAMA3_SCALING,
            "num_key_value_heads": None,
            "head_dim": 16,
        },
        "f16",
        1,
    ),
    "llama-bias-linear": (
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_scaling": {"type": "linear", "factor": 2.0},
        },
        "f32",
        1,
    ),
    "mistral": ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 48}, "bf16", 1),
    "qwen2": (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "use_sliding_window": False,
            "sliding_window": 48,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
        },
        "bf16",
        1,
    ),
    "qwen2-yarn-sliding": (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "use_sliding_window": True,
            "sliding_window": 48,
            "max_window_layers": 1,
            "rope_scaling": YARN,
        },
        "bf16",
        1,
    ),
    "qwen3": (
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "head_dim": 32,
            "attention_bias": False,
            "rope_theta": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
        },
        "bf16",
        1,
    ),
    "gemma2": (
        GEMMA
        | {
            "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2",
            "query_pre_attn_scalar": 48,
            "sliding_window": 48,
            "attn_logit_softcapping": 10.0,
            "final_logit_softcapping": 8.0,
            "intermediate_size": 64,
        },
        "bf16",
        1,
    ),
    "gemma3": (
        GEMMA
        | {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "query_pre_attn_scalar": 32,
            "sliding_window": 48,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 6,
            "num_hidden_layers": 6,
            "hidden_size": 64,
            "head_dim": 16,
            "intermediate_size": 64,
        },
        "bf16",
        1,
    ),
    "phi3": (
        {
            "architectures": ["Phi3ForCausalLM"],
            "model_type": "phi3",
            "pad_token_id": 0,
            "num_key_value_heads": 4,
            "original_max_position_embeddings": 96,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
                "long_factor": [1.1, 1.4, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0],
            },
            "sliding_window": 224,
        },
        "bf16",
        1,
    ),
    "phi3-partial": (
        {
            "architectures": ["Phi3ForCausalLM"],
            "model_type": "phi3",
            "pad_token_id": 0,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 256,
            "sliding_window": None,
            "tie_word_embeddings": True,
        },
        "bf16",
        1,
    ),
    "mixtral": (
        MOE
        | {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_theta": 1000000.0,
        },
        "bf16",
        1,
    ),
    "qwen3_moe": (
        MOE
        | {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "head_dim": 32,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [0],
            "rms_norm_eps": 1e-6,
        },
        "bf16",
        1,
    ),
    "deepseek_v2-lite": (
        LATENT
        | {
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "beta_fast": 32,
                "beta_slow": 1,
                "original_max_position_embeddings": 64,
            }
        },
        "bf16",
        1,
    ),
    "deepseek_v2": (
        LATENT
        | {
            "q_lora_rank": 48,
            "n_group": 2,
            "topk_group": 1,
            "topk_method": "group_limited_greedy",
            "n_routed_experts": 8,
            "routed_scaling_factor": 1.5,
            "num_hidden_layers": 2,
        },
        "bf16",
        1,
    ),
}

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def config_of(name):
    fields, dtype, _ = RECIPES[name]
    merged = BASE | fields
    config = {k: v for k, v in merged.items() if v is not None or k in ("q_lora_rank", "sliding_window")}
    config["torch_dtype"] = str(DTYPES[dtype]).removeprefix("torch.")
    if merged.get("architectures") == ["LlamaForCausalLM"] or merged["model_type"] == "deepseek_v2":
        config.pop("sliding_window", None)
    return config


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    gemma = model.config.model_type.startswith("gemma")
    for name, parameter in sorted(model.named_parameters()):
        draw = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            value = 0.2 * draw + (0.0 if gemma else 1.0) + (3.0 if gemma and name == "model.norm.weight" else 0.0)
        elif name.endswith("bias"):
            value = 0.3 * draw
        elif "embed_tokens" in name:
            value = (0.04 if gemma else 0.5) * draw  # small where embeddings are scaled up and tied: no token echoes
        else:
            # Rows of unit-variance inputs give outputs of about 1.8, whatever their length: scores of a few units.
            value = 1.8 / parameter.shape[-1] ** 0.5 * draw
        parameter.data.copy_(value)


def save(model, directory, dtype, shards):
    """As save_pretrained does, but every shard's bytes are ours to choose and config.json stays as written."""
    scratch = directory / "scratch"
    size = sum(p.numel() * DTYPES[dtype].itemsize for p in model.parameters())
    model.to(DTYPES[dtype]).save_pretrained(scratch, max_shard_size=size * 2 if shards == 1 else size * 2 // 3)
    for path in sorted(scratch.iterdir()):
        if path.name.startswith("model"):
            path.chmod(0o644)
            path.rename(directory / path.name)
    shutil.rmtree(scratch)
    found = len(list(directory.glob("*.safetensors")))
    if found != shards:
        raise SystemExit(f"{directory}: {found} shards, wanted {shards}")


class RouterGap:
    """Smallest distance between the last chosen and the first rejected expert, over everything that was run."""

    def __init__(self, model):
        self.gap = float("inf")
        for name, module in model.named_modules():
            if type(module).__name__.endswith(("TopKRouter", "TopkRouter")):
                module.register_forward_hook(self.watch)

    def watch(self, module, _inputs, outputs):
        logits, _, chosen = outputs
        scores = logits.float().softmax(-1)
        groups = getattr(module, "num_group", None) or 1
        if groups > 1:  # one group is kept: the gap between groups counts, and experts compete inside it
            best = scores.view(-1, groups, scores.shape[-1] // groups).amax(-1).sort(-1, descending=True).values
            self.gap = min(self.gap, (best[:, 0] - best[:, 1]).min().item())
            group = scores.view(-1, groups, scores.shape[-1] // groups).amax(-1).argmax(-1)
            scores = scores.view(-1, groups, scores.shape[-1] // groups)[torch.arange(len(group)), group]
        ordered = scores.sort(-1, descending=True).values
        k = chosen.shape[-1]
        if k < ordered.shape[-1]:
            self.gap = min(self.gap, (ordered[:, k - 1] - ordered[:, k]).min().item())


@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def config_context(config, length):
    """The context under which an engine that fixes LongRoPE's factors at loading runs a sequence of this length."""
    original = getattr(config, "original_max_position_embeddings", None)
    return original if original and length <= original else config.max_position_embeddings


def measure(directory, seed):
    """Goldens of a saved directory, or a sentence that says why this seed won't do."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    router = RouterGap(model)
    generator = np.random.default_rng(seed)
    prompts, rows = [], []
    for name, length in PROMPT_LENGTHS.items():
        ids = [int(i) for i in generator.integers(3, VOCAB, length)]
        logits = logits_of(model, ids)
        rows.append(logits[KEPT_ROWS[name]].numpy())
        greedy = []
        while len(greedy) < GREEDY_TOKENS:
            top = logits[-1].topk(2)
            spread = (logits[-1].max() - logits[-1].min()).item()
            if (top.values[0] - top.values[1]).item() < 2e-3 * spread:
                return f"{name}: greedy token {len(greedy)} is close to a tie"
            greedy.append(int(top.indices[0]))
            logits = logits_of(model, ids + greedy)
        if len(set(greedy)) < 4:
            return f"{name}: the continuation is a loop"
        context = config_context(model.config, length + GREEDY_TOKENS)
        prompts.append({"name": name, "ids": ids, "rows": KEPT_ROWS[name], "greedy": greedy, "context": context})
    if router.gap < 2e-5:
        return f"experts within {router.gap:.1e}"
    return prompts, np.concatenate(rows).astype(np.float32)


def make(name, out):
    config = config_of(name)
    _, dtype, shards = RECIPES[name]
    directory = out / name
    for seed in range(1, 200):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
        randomize(model, seed)
        save(model, directory, dtype, shards)
        result = measure(directory, seed)
        if not isinstance(result, str):
            break
        print(f"{name}: seed {seed}: {result}")
    else:
        raise SystemExit(f"{name}: no seed will do")
    prompts, rows = result
    np.save(directory / "goldens.npy", rows)
    goldens = {"made_by": "tools/make_tiny_models.py", "seed": seed, "prompts": prompts}
    (directory / "goldens.json").write_text(json.dumps(goldens) + "\n")
    size = sum(p.stat().st_size for p in directory.iterdir())
    print(f"{name}: seed {seed}, {size // 1024} KiB, logits std {rows.std():.2f}, spread {np.ptp(rows):.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", default="tests/data/models", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    for name in args.only.split(",") if args.only else RECIPES:
        make(name, args.out)


if __name__ == "__main__":
    main()
