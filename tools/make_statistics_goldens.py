#!/usr/bin/env python3
"""What NumPy, and llm-compressor's definitions, make of keys, values and queries: goldens of the calibration's statistics.

statistics.json: of the dump beside it (statistics.safetensors: K, V and Q of one layer, and the shares of attention that
each query pays to each page) the ranges, percentiles and clips of least squared error per tensor, head and channel, and the
sums of products of keys and queries that the transforms are made from, all in float64 by NumPy.

scales.json: of tiny models (tests/data/models) the scales of an FP8 cache as llm-compressor has them: its static_minmax
observer (src/llmcompressor/observers/min_max.py: the least and the greatest of all that is observed, over tokens and, per
tensor, over heads and channels, or per attn_head over channels) and compressed_tensors' calculate_qparams
(compressed_tensors/quantization/utils/helpers.py: scale = max(|min|, |max|) / ((bit_max − bit_min) / 2), which for FP8 E4M3 is
max|x| / 448), and the tensor scale of NVFP4. K is taken after RoPE, K and V as bfloat16, as its hooks on the cache see them; Transformers runs the models in
float32. Where the package compressed-tensors is installed, its own function makes the scales; they must be those of the formula.

usage: make_statistics_goldens.py [--models tests/data/models] [--out tests/data/statistics]
       (needs numpy, torch, transformers, safetensors; compressed-tensors if it is to be asked)
"""

import argparse
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

SEED = 20
TOKENS, PAGE = 210, 64
KV_HEADS, QUERY_HEADS, DIM = 2, 4, 16
PERCENTILES = [99, 99.9, 99.99]
CLIP_BITS = [8, 4]
SHARES = [(100 - i) / 100 for i in range(80)]
MODELS = ["llama", "qwen2", "qwen3"]
DOCUMENTS = [150, 97]
FP8_LARGEST, FP4_LARGEST = 448.0, 6.0


def bf16(x):
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(torch.bfloat16).to(torch.float32).numpy()


def dump(rng):
    """Channels of very different sizes, tails, a channel that is nearly always zero, and one that always is."""

    def rows(heads):
        sizes = np.exp(rng.normal(0, 1.5, (heads, DIM)))
        x = rng.standard_t(3, (TOKENS, heads, DIM)) * sizes + rng.normal(0, 1, (heads, DIM))
        x[:, 0, 3] *= rng.random(TOKENS) < 0.02
        x[:, 1, 5] = 0
        return x.astype(np.float32)

    pages = -(-TOKENS // PAGE)
    mass = rng.random((TOKENS, QUERY_HEADS, pages)) ** 4
    return {"k": bf16(rows(KV_HEADS)), "v": bf16(rows(KV_HEADS)), "q": rows(QUERY_HEADS), "mass": mass.astype(np.float32)}


def clip_of(magnitudes, bits):
    """The share of the largest magnitude whose symmetric grid has the least squared error, by trying all; the first of equals."""
    levels = 2 ** (bits - 1) - 1
    best, least = 0.0, None
    for share in SHARES:
        scale = magnitudes.max() * share / levels
        if scale == 0:
            return 0.0
        error = ((np.rint(np.minimum(magnitudes / scale, levels)) * scale - magnitudes) ** 2).sum()
        if least is None or error < least * (1 - 1e-9):
            best, least = share, error
    return best * magnitudes.max()


def clips(x):
    magnitudes = np.abs(x.astype(np.float64)).ravel()
    ends = [float(np.percentile(magnitudes, p, method="inverted_cdf")) for p in PERCENTILES]
    return ends + [float(clip_of(magnitudes, bits)) for bits in CLIP_BITS]


def side(x):
    heads = range(x.shape[1])
    return {
        "low": x.min(axis=0).astype(float).tolist(),
        "high": x.max(axis=0).astype(float).tolist(),
        "tensor": clips(x),
        "heads": [clips(x[:, h]) for h in heads],
        "channels": [[clips(x[:, h, c]) for c in range(DIM)] for h in heads],
    }


def key_products(k):
    """Of whole pages after the first, each about its own mean."""
    k = k.astype(np.float64)
    total = np.zeros((DIM, DIM))
    for first in range(PAGE, len(k) - PAGE + 1, PAGE):
        page = k[first : first + PAGE] - k[first : first + PAGE].mean(axis=0)
        total += page.T @ page
    return total


def query_products(q, mass):
    """Each query weighted by the sum of its squared shares of the pages between the first and its own."""
    total = np.zeros((DIM, DIM))
    for t in range(len(q)):
        weight = (mass[t, 1 : max(t // PAGE, 1)].astype(np.float64) ** 2).sum()
        total += weight * np.outer(q[t].astype(np.float64), q[t].astype(np.float64))
    return total


def statistics(data):
    group = QUERY_HEADS // KV_HEADS
    queries = [
        sum(query_products(data["q"][:, h], data["mass"][:, h]) for h in range(kv * group, (kv + 1) * group))
        for kv in range(KV_HEADS)
    ]
    return {
        "seed": SEED,
        "numpy": np.__version__,
        **{name: side(bf16(data[name])) for name in "kvq"},
        "key_products": [key_products(data["k"][:, h]).tolist() for h in range(KV_HEADS)],
        "query_products": [x.tolist() for x in queries],
    }


def scale_of(low, high):
    """compressed_tensors.quantization.utils.calculate_qparams of FP8 E4M3, symmetric: bit_max − bit_min = 2 · 448."""
    scale = torch.maximum(low.clamp(max=0).abs(), high.clamp(min=0).abs()) / FP8_LARGEST
    try:
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.utils import calculate_qparams
    except ImportError:
        return scale
    args = QuantizationArgs(num_bits=8, type="float", symmetric=True, strategy="tensor")
    asked = calculate_qparams(low, high, args)[0]
    assert torch.equal(asked.reshape(-1).float(), scale.reshape(-1)), "the formula isn't the package's"
    return scale


def nvfp4_scale_of(low, high):
    """The tensor scale of NVFP4: compressed_tensors' generate_gparam is its inverse, 448 · 6 / max|x|."""
    scale = torch.maximum(low.abs(), high.abs()) / (FP8_LARGEST * FP4_LARGEST)
    try:
        from compressed_tensors.quantization.utils import generate_gparam
    except ImportError:
        return scale
    torch.testing.assert_close(1 / generate_gparam(low, high).float(), scale, rtol=1e-6, atol=0)
    return scale


@torch.no_grad()
def scales(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    vocabulary = model.config.vocab_size
    documents = [[(i * 7919 + i // 3 * 31 + 5 + d) % vocabulary for i in range(n)] for d, n in enumerate(DOCUMENTS)]
    ends = {}
    for ids in documents:
        cache = model(input_ids=torch.tensor([ids]), use_cache=True).past_key_values
        for layer in range(model.config.num_hidden_layers):
            for name, states in zip("kv", (cache.layers[layer].keys, cache.layers[layer].values)):
                states = states[0].to(torch.bfloat16).float()  # [heads, tokens, channels]
                low, high = states.amin(dim=(1, 2)), states.amax(dim=(1, 2))
                if (layer, name) in ends:
                    low, high = torch.minimum(low, ends[layer, name][0]), torch.maximum(high, ends[layer, name][1])
                ends[layer, name] = (low, high)
    layers = []
    for layer in range(model.config.num_hidden_layers):
        row = {}
        for name in "kv":
            low, high = ends[layer, name]
            least, most = low.min()[None], high.max()[None]
            row[name] = {
                "tensor": scale_of(least, most).tolist(),
                "heads": scale_of(low, high).tolist(),
                "nvfp4": nvfp4_scale_of(least, most).tolist(),
            }
        layers.append(row)
    return {"documents": documents, "layers": layers}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default="tests/data/models")
    parser.add_argument("--out", type=pathlib.Path, default="tests/data/statistics")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    data = dump(np.random.default_rng(SEED))
    save_file(data, args.out / "statistics.safetensors")
    (args.out / "statistics.json").write_text(json.dumps(statistics(data)) + "\n")
    goldens = {name: scales(args.models / name) for name in MODELS}
    (args.out / "scales.json").write_text(json.dumps(goldens) + "\n")


if __name__ == "__main__":
    main()
