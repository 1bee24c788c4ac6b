#!/usr/bin/env python3
"""What Transformers computes with the weights of a real model in GGUF: the goldens of real_models_test.

The GGUF's tensors are dequantized to float32 by Transformers' own reader and run in float32 with eager attention. For each
prompt the file keeps the token ids, the 20 largest logits of some positions with the spread of all logits there, and the
greedy continuation; `least_margin` is the smallest distance between its two best tokens. One prompt is longer than Gemma 3's
sliding window of 512 tokens; its text is the Apache License 2.0.

usage: make_model_goldens.py GGUF LICENSE --out tests/data/models/NAME.json     (needs torch, transformers, gguf)
"""

import argparse
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GREEDY_TOKENS = 48
TOP = 20
PROMPTS = {
    "fact": "The capital of France is Paris, and the capital of Italy is",
    "story": "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "german": "Die wichtigsten Städte in Deutschland sind Berlin, Hamburg und",
}
LONG_TOKENS = 700
SPREAD_POSITIONS = [0, 63, 64, 300, 511, 512, 513, 640, 699]


@torch.no_grad()
def golden(model, name, ids, positions):
    out = model(input_ids=torch.tensor([ids]), use_cache=True)
    logits, cache = out.logits[0], out.get("cache", None) or out.past_key_values
    rows = []
    for position in positions:
        top = logits[position].topk(TOP)
        spread = (logits[position].max() - logits[position].min()).item()
        rows.append(
            {
                "position": position,
                "spread": round(spread, 6),
                "ids": top.indices.tolist(),
                "logits": [round(v, 6) for v in top.values.tolist()],
            }
        )
    greedy, least_margin, last = [], float("inf"), logits[-1]
    while True:
        top = last.topk(2)
        least_margin = min(least_margin, (top.values[0] - top.values[1]).item())
        greedy.append(int(top.indices[0]))
        if len(greedy) == GREEDY_TOKENS:
            break
        out = model(input_ids=torch.tensor([greedy[-1:]]), cache=cache, use_cache=True)
        last = out.logits[0, -1]
    return {"name": name, "ids": ids, "rows": rows, "greedy": greedy, "least_margin": round(least_margin, 6)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("license", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(args.gguf.parent, gguf_file=args.gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        args.gguf.parent, gguf_file=args.gguf.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    print(model.config)
    prompts = []
    for name, text in PROMPTS.items():
        ids = tokenizer(text).input_ids
        prompts.append(golden(model, name, ids, sorted({0, len(ids) // 2, len(ids) - 1})))
    ids = tokenizer(args.license.read_text()).input_ids[:LONG_TOKENS]
    prompts.append(golden(model, "license", ids, SPREAD_POSITIONS))
    for prompt in prompts:
        print(prompt["name"], len(prompt["ids"]), prompt["least_margin"], repr(tokenizer.decode(prompt["greedy"])))
    goldens = {"made_by": "tools/make_model_goldens.py", "model": args.gguf.name, "prompts": prompts}
    args.out.write_text(json.dumps(goldens) + "\n")


if __name__ == "__main__":
    main()
