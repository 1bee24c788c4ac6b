#!/usr/bin/env python3
"""Makes docs/quality.md: the divergence of every scheme on both real models, by sealed bits.

usage: tools/make_quality_doc.py [--keep DIR]     (needs build/kvant and the models of tools/setup.sh)

Calibrates on data/calibration.jsonl and compares on data/wikitext2-test.txt, data/test-code.txt and data/test-zh.txt.
What a run of kvant printed is kept in DIR (build/quality) and not run again, so that a broken run can go on.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVANT = "build/kvant"  # paths as seen from the root
DOC = ROOT / "docs/quality.md"
MIXTURE = "data/calibration.jsonl"
WIKITEXT = "data/wikitext2-test.txt"
# The file, how many windows of WikiText, and options of calibrate: Gemma 3's file has no chat template, so chats are left out.
MODELS = {"SmolLM2": ("SmolLM2-135M-Instruct.Q4_1.gguf", 4, []), "Gemma 3 270M": ("gemma-3-270m-q4_k_m.gguf", 2, ["--skip-bad"])}
V4, V3, V2 = (f"int{bits}_token_z_lsq_rot" for bits in (4, 3, 2))

# Rows of the table: a name, and what --kv gets. The first page is exact in all of them.
CALIBRATED = [("int4", "int4"), ("int3", "int3"), ("int2", "int2"),
              ("balanced 4", f"bal4/{V4}"), ("balanced 3", f"bal3/{V3}"), ("balanced 2", f"bal2/{V2}")]
PLAIN = [("int8", "int8"), ("k8v4", "k8v4"), ("int4, uncalibrated", "int4"), ("int3, uncalibrated", "int3"),
         ("int2, uncalibrated", "int2"), ("KIVI-4", "kivi4"), ("KIVI-3", "int3_channel_z/int3_g32_z"), ("KIVI-2", "kivi2"),
         ("FP8 E4M3, scale 1", "fp8"), ("q4_0, rotated", "int4_g32_rot"), ("NVFP4", "nvfp4"), ("KVarN-4", "kvarn4"),
         ("KVarN-2", "kvarn2"), ("KVarN-3", "kvarn3"), ("int8 per token", "int8_token"), ("q4_0", "int4_g32"),
         ("NVFP4, rotated", "nvfp4_rot"), ("MXFP4", "mxfp4"), ("MXFP8 E4M3", "mxfp8_e4m3"), ("q8_0", "int8_g32"),
         ("KVarN K4V2", "kvarn4/kvarn2"), ("MXFP8 E5M2", "mxfp8_e5m2"), ("FP8 E4M3 per token", "fp8_e4m3_token"),
         ("K per channel, 4", f"int4_channel_z/{V4}"), ("K per channel, 3", f"int3_channel_z/{V3}"),
         ("K per channel, 2", f"int2_channel_z/{V2}"), ("K per channel, rotated, 4", f"int4_channel_z_rot/{V4}"),
         ("K per channel, rotated, 3", f"int3_channel_z_rot/{V3}"), ("K per channel, rotated, 2", f"int2_channel_z_rot/{V2}")]
AT_ONCE = 6  # formats of one run
# The same without an exact first page, as published.
WITHOUT_SINKS = [("KIVI-4, no sink", "kivi4"), ("KIVI-3, no sink", "int3_channel_z/int3_g32_z"),
                 ("KIVI-2, no sink", "kivi2"), ("q4_0, no sink", "int4_g32"), ("q4_0, rotated, no sink", "int4_g32_rot")]

# What calibration has to reach: the most KLD, and the most of KIVI's.
WANTED = {"SmolLM2": {"int8": (4e-5,), "k8v4": (7e-4,), "int4": (1.3e-3, "KIVI-4", 0.3), "int3": (8e-3, "KIVI-3", 0.35),
                      "int2": (6e-2, "KIVI-2", 0.25)},
          "Gemma 3 270M": {"int8": (4e-5,), "k8v4": (7e-4,), "int4": (1.8e-3, "KIVI-4", 0.6), "int3": (9e-3, "KIVI-3", 0.6),
                           "int2": (4e-2, "KIVI-2", 0.3)}}

# Transfer: calibrated on lines of one domain or all, tested on each text.
DOMAINS = ["en_prose", "code", "zh", None]
TESTS = {"English": WIKITEXT, "code": "data/test-code.txt", "Chinese": "data/test-zh.txt"}
TRANSFER = ["--context", 1024, "--windows", 2]
TRANSFER_OF = ["SmolLM2"]


HEAD = """# Quality

What every scheme costs in quality, on two real models: mean KL divergence of the next-token distribution from that of a BF16 cache, in nats.
Windows of 2,048 tokens of WikiText-2 (test), each from an empty cache: {windows}; float32 weights, so that nothing but the cache differs; the first
page of 64 tokens exact except where a row says otherwise. Made by

```
make build && tools/make_quality_doc.py        # an hour and a half on two cores
```

Calibrated rows were fitted to data/calibration.jsonl ({tokens} tokens of SmolLM2's: English novels, chat, code, tool calls, Chinese and ten other
languages; data/SOURCE.md; Gemma 3's file has no chat template, so its calibration is without the chats), which shares no document with the tests. In brackets: 95 % of a bootstrap over windows. **Sealed bits** are those of a full page per
element of K and V, scales included.
"""


def run(folder, name, arguments):
    """What kvant prints as JSON; kept in a file, with its command."""
    kept = ROOT / folder / f"{name}.json"
    command = [KVANT, *map(str, arguments)]
    if kept.exists():
        result = json.loads(kept.read_text())
        if result["made_by"] == command:
            return result
    print("running", *command[1:], file=sys.stderr, flush=True)
    done = subprocess.run([*command, "--json"], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    result = {"made_by": command, **json.loads(done.stdout)}
    kept.write_text(json.dumps(result, indent=1))
    return result


class Model:
    def __init__(self, name, path, folder, windows, options):
        self.name, self.path, self.folder, self.windows, self.options = name, path, folder / name.replace(" ", "-"), windows, options
        (ROOT / self.folder).mkdir(parents=True, exist_ok=True)

    def calibrate(self, domain=None):
        """The folder of a calibration on all of the mixture or on one domain, and its tokens."""
        out = self.folder / f"calibration-{domain or 'mixture'}"
        (ROOT / out).mkdir(exist_ok=True)
        data = MIXTURE
        if domain:
            data = out / "data.jsonl"
            lines = (line for line in (ROOT / MIXTURE).read_text().splitlines() if json.loads(line)["domain"] == domain)
            (ROOT / data).write_text("".join(line + "\n" for line in lines))
        result = run(self.folder, f"calibrate-{domain or 'mixture'}",
                     ["calibrate", self.path, "--data", data, "--for", "tc4,tc3,tc2,bal4,bal3,bal2", "--out", out, *self.options])
        return out, result["tokens"]

    def compare(self, name, rows, text, options):
        """Results by row name; a few formats a run, so that little is lost where one breaks."""
        formats = list(dict.fromkeys(kv for _, kv in rows))
        by_kv = {}
        for first in range(0, len(formats), AT_ONCE):
            some = formats[first:first + AT_ONCE]
            result = run(self.folder, name + (f"-{first}" if first else ""),
                         ["compare", self.path, "--text", text, "--weights", "f32", "--no-speed", "--kv", ",".join(some), *options])
            by_kv.update((row["format"], row) for row in result["rows"])
        return {row: by_kv[kv] for row, kv in rows}

    def all_rows(self):
        out, _ = self.calibrate()
        size = ["--context", 2048, "--windows", self.windows]
        return {**self.compare("calibrated", CALIBRATED, WIKITEXT, [*size, "--calibration", out]),
                **self.compare("plain", PLAIN, WIKITEXT, size),
                **self.compare("no-sinks", WITHOUT_SINKS, WIKITEXT, [*size, "--sinks", 0])}

    def transfer(self):
        """[test][row] → KLD."""
        formats = [("tc4", "int4"), ("tc2", "int2")]
        out = {}
        for test, text in TESTS.items():
            cells = out.setdefault(test, {})
            plain = self.compare(f"transfer-{test}-plain", [("KIVI-4", "kivi4"), ("KIVI-2", "kivi2")], text, TRANSFER)
            cells.update({row: result["kld"] for row, result in plain.items()})
            for domain in DOMAINS:
                folder, _ = self.calibrate(domain)
                rows = self.compare(f"transfer-{test}-{domain or 'mixture'}", formats, text, [*TRANSFER, "--calibration", folder])
                cells.update({(row, domain): result["kld"] for row, result in rows.items()})
        return out


def number(x):
    return f"{x:.2e}".replace("e-0", "e-")


def cell(row):
    return (f"{row['sealed_bits']:.2f} | {number(row['kld'])} [{number(row['kld_low'])}, {number(row['kld_high'])}] | "
            f"{number(row['kld_p99'])}")


def formats_of(results, row, side):
    """The format of a side, of each model where they differ: a preset's depends on the model."""
    return "; ".join(dict.fromkeys(result[row][side] for result in results.values()))


def big_table(results):
    first = next(iter(results.values()))
    lines = ["| scheme | K | V | " + " | ".join(f"{name}: bits | KLD | P99" for name in results) + " |",
             "| --- | --- | --- |" + " ---: | --- | --- |" * len(results)]
    for row in sorted(first, key=lambda row: (-first[row]["sealed_bits"], first[row]["kld"])):
        lines.append(f"| {row} | {formats_of(results, row, 'k_format')} | {formats_of(results, row, 'v_format')} | "
                     + " | ".join(cell(result[row]) for result in results.values()) + " |")
    return "\n".join(lines)


def wanted_table(results):
    lines = ["| model | preset | KLD | wanted | of KIVI's | wanted | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for model, presets in WANTED.items():
        for preset, (most, *kivi) in presets.items():
            kld = results[model][preset]["kld"]
            ratio = kld / results[model][kivi[0]]["kld"] if kivi else None
            reached = kld <= most and (not kivi or ratio <= kivi[1])
            lines.append(f"| {model} | {preset} | {number(kld)} | {number(most)} | {f'{ratio:.2f}' if kivi else ''} | "
                         f"{kivi[1] if kivi else ''} | {'reached' if reached else 'missed'} |")
    return "\n".join(lines)


def transfer_table(cells):
    columns = [f"tc4 on {domain or 'all'}" for domain in DOMAINS] + ["KIVI-4"] + [f"tc2 on {domain or 'all'}" for domain in DOMAINS] + ["KIVI-2"]
    keys = [("tc4", d) for d in DOMAINS] + ["KIVI-4"] + [("tc2", d) for d in DOMAINS] + ["KIVI-2"]
    lines = ["| tested on | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for test, row in cells.items():
        lines.append(f"| {test} | " + " | ".join(number(row[key]) for key in keys) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", default="build/quality", help="where results are kept (default: %(default)s)")
    options = parser.parse_args()
    cache = os.environ.get("KVANT_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvant")
    models = [Model(name, pathlib.Path(cache) / "models" / file, pathlib.Path(options.keep), windows, calibrate_options)
              for name, (file, windows, calibrate_options) in MODELS.items()]
    for path in [ROOT / KVANT, *(model.path for model in models)]:
        if not path.exists():
            sys.exit(f"{path}: not there; make build and tools/setup.sh models make it")
    tokens = models[0].calibrate()[1]
    results = {model.name: model.all_rows() for model in models}
    text = HEAD.format(windows=", ".join(f"{model.windows} with {model.name}" for model in models), tokens=f"{tokens:,}")
    text += "\n" + big_table(results) + "\n\n## What was wanted of the presets\n\n" + wanted_table(results) + "\n"
    text += "\n## Transfer\n\nCalibrated on one domain of the mixture or on all of it, tested on two windows of 1,024 tokens of each text.\n"
    for model in (model for model in models if model.name in TRANSFER_OF):
        text += f"\n{model.name}:\n\n{transfer_table(model.transfer())}\n"
    DOC.write_text(text)
    print(f"{DOC} written")


if __name__ == "__main__":
    main()
