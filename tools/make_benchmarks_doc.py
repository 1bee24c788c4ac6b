#!/usr/bin/env python3
"""Makes docs/benchmarks.md: the speed of attention by its targets, of sealing, and end to end beside other engines.

usage: tools/make_benchmarks_doc.py [--keep DIR] [--only A,B]     (needs build/kvant and the models of tools/setup.sh)

Run it on a machine that does nothing else. What a part printed is kept in DIR (build/benchmarks) and not run again:
delete a file to measure it anew. A part that isn't kept and isn't in --only is left out of the document.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOC = ROOT / "docs/benchmarks.md"
CACHE = pathlib.Path(os.environ.get("KVANT_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "kvant")
GEMMA = "gemma-3-270m-q4_k_m.gguf"

# Parts by name: environment, and a command that writes JSON to {out}. {models}: the folder of models.
PARTS = {
    "targets": ({}, "build/kvant bench attention --targets --json={out}"),
    "targets-avx2": ({"KVANT_FORCE_ISA": "avx2"}, "build/kvant bench attention --targets --only decode --json={out}"),
    "seal": ({}, "build/kvant bench seal --heads 32 --kv-heads 8 --dim 128 --tokens 8192 --threads 1 --json={out}"),
    "peers": ({}, "bench/peers/run.py --out {out}"),
    "peers-gemma": ({}, "bench/peers/run.py --model {models}/" + GEMMA +
                    " --context 32768 --depths 512,8192,30000 --prompt 0 --repeats 1 --out {out}"),
}

# End to end, of SmolLM2 with two threads: tok/s at depths, and seconds to the first token of 6,000.
SHORT, LONG = 512, 8064  # what run.py makes of 8,192
WANTED_SPEED = {"int8": {SHORT: 150, LONG: 100}, "int4": {SHORT: 150, LONG: 115}, "bf16": {SHORT: 150, LONG: 60}}
FIRST_TOKEN, WANTED_FIRST_TOKEN = 6000, 5.0
# What, depth, Kvant's cache, the peer whose best is compared with, and the least ratio of speeds.
WANTED_RATIOS = [("decode", LONG, "int8", "llama.cpp", 3.5), ("decode", LONG, "int8", "openvino", 2.2),
                 ("decode", SHORT, "int8", "llama.cpp", 1.15), ("first_token", FIRST_TOKEN, "int8", "openvino", 1 / 0.8)]

HEAD = """# Benchmarks

Speeds on one machine, medians with their spread. Answers of attention and of encoders are checked before they are timed; what is
compared runs in turn in one process or one script, because shared machines change their speed from minute to minute.
Made by

```
make build && tools/make_benchmarks_doc.py        # an hour and a half on two cores
```
"""


def run(name, folder):
    environment, command = PARTS[name]
    out = folder / f"{name}.json"
    command = command.format(out=out, models=CACHE / "models")
    print("running", command, file=sys.stderr, flush=True)
    done = subprocess.run(shlex.split(command), cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{command}: failed")


def shown(name):
    """The command as a reader would type it."""
    environment, command = PARTS[name]
    words = [f"{key}={value}" for key, value in environment.items()] + command.split()
    return " ".join(word for word in words if not word.startswith("--json") and word not in ("--out", "{out}")).format(
        models="$KVANT_CACHE/models")


def text(x, digits=2):
    return "" if x is None else f"{x:,.{digits}f}"


def verdict(reached):
    return {True: "yes", False: "**no**", None: "not measured"}[reached]


def targets_section(title, name, report):
    lines = [f"## {title}", "", f"`{shown(name)}`", "", f"{report['cpu']}; computes with {report['isa']}. Memory reads "
             + "; ".join(f"{run['run']}: " + ", ".join(f"{b['bytes_per_second'] * 1e-9:.1f} GB/s ({b['threads']})"
                                                     for b in run["read_bandwidth"]) for run in report["runs"])
             + " (threads in brackets)."]
    if report["notes"]:
        lines.append(f"Left out: {report['notes']}.")
    reached = sum(1 for t in report["targets"] if t["reached"])
    known = sum(1 for t in report["targets"] if t["reached"] is not None)
    lines += ["", f"{reached} of {known} targets reached.", "",
              "| run | target | format | threads | wanted | measured | ms | spread | reached |",
              "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"]
    for t in report["targets"]:
        lines.append(f"| {t['run']} | {t['target']} | {t['format']} | {t['threads']} | {text(t['wanted'])} | "
                     f"{text(t['measured'])} | {text(t['ms'], 3)} | {'' if t['spread'] is None else format(t['spread'], '.0%')} | "
                     f"{verdict(t['reached'])} |")
    lines += ["", "All rows of these runs:", "", "| run | format | threads | ms | spread | bytes | of bandwidth |",
              "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for row in report["rows"]:
        lines.append(f"| {row['run']} | {row['format']} | {row['threads']} | {text(row['ms'], 3)} | {row['spread']:.0%} | "
                     f"{row['bytes'] * 1e-6:.1f} MB | {row['bandwidth_share']:.0%} |")
    return "\n".join(lines)


def seal_section(name, report):
    def rate(x):
        return "exact" if x is None else f"{x * 1e-9:.2f}"
    lines = ["## Append and seal", "", f"`{shown(name)}`", "",
             "GB/s of BF16 rows: of the encoders alone on one thread, and of a prefill through the cache; and what of a decode",
             f"step's append and attention behind {report['tokens']:,} tokens goes into append and seal. Wanted: 2 GB/s of formats",
             "whose grids are computed and not searched, and less than 3 %.", "",
             "| K / V | K, GB/s | V, GB/s | spread | prefill, GB/s | of decode | reached |",
             "| --- | ---: | ---: | ---: | ---: | ---: | --- |"]
    for row in report["rows"]:
        lines.append(f"| {row['format']} | {rate(row['k_bytes_per_second'])} | {rate(row['v_bytes_per_second'])} | {row['spread']:.0%} | "
                     f"{rate(row['prefill_bytes_per_second'])} | {row['decode_share']:.1%} | {verdict(row['reached'])} |")
    return "\n".join(lines)


def peers_table(report):
    columns = list(dict.fromkeys((row["what"], row["tokens"]) for row in report["rows"]))
    titles = [f"tok/s at {tokens:,}" if what == "decode" else f"first token of {tokens:,}" for what, tokens in columns]
    cells = {(row["engine"], row["cache"], row["what"], row["tokens"]):
             f"{row['median']:.1f}{' s' if row['what'] == 'first_token' else ''} (±{row['spread'] / 2:.0%})" for row in report["rows"]}
    lines = ["| engine | cache | " + " | ".join(titles) + " |", "| --- | --- |" + " ---: |" * len(titles)]
    for engine, cache in dict.fromkeys((row["engine"], row["cache"]) for row in report["rows"]):
        lines.append(f"| {engine} | {cache} | " + " | ".join(cells.get((engine, cache, *column), "") for column in columns) + " |")
    return lines


def speed(report, engine, what, tokens, cache=None):
    """The best of an engine's caches, as a speed; nothing if none was measured."""
    found = [row["median"] for row in report["rows"] if (row["engine"], row["what"], row["tokens"]) == (engine, what, tokens)
             and cache in (None, row["cache"])]
    if not found:
        return None
    return max(found) if what == "decode" else 1 / min(found)


def end_to_end_targets(report):
    lines = ["| what | wanted | measured | reached |", "| --- | ---: | ---: | --- |"]

    def add(what, wanted, measured):
        lines.append(f"| {what} | {text(wanted)} | {text(measured)} | {verdict(None if measured is None else measured >= wanted)} |")
    for cache, depths in WANTED_SPEED.items():
        for depth, wanted in depths.items():
            add(f"{cache}, tok/s at {depth:,}", wanted, speed(report, "kvant", "decode", depth, cache))
        rate = speed(report, "kvant", "first_token", FIRST_TOKEN, cache)
        add(f"{cache}, prompts of {FIRST_TOKEN:,} in {WANTED_FIRST_TOKEN:.0f} s", 1, rate and rate * WANTED_FIRST_TOKEN)
    for what, tokens, cache, peer, wanted in WANTED_RATIOS:
        ours, theirs = speed(report, "kvant", what, tokens, cache), speed(report, peer, what, tokens)
        name = f"decoding at {tokens:,}" if what == "decode" else f"first token of {tokens:,}"
        add(f"{cache}, {name}: times the speed of {peer}'s best", wanted, ours / theirs if ours and theirs else None)
    return lines


def peers_section(title, name, report, with_targets):
    versions = ", ".join(f"{engine} {version}" for engine, version in report["versions"].items())
    lines = [f"## {title}", "", f"`{shown(name)}`", "",
             f"{report['model']} on {report['cpu']}, {report['threads']} threads; {versions}. {report['steps']} tokens decoded behind so",
             f"many in the cache; medians of {report['repeats']}, in brackets half the range.", "", *peers_table(report)]
    if report["cannot"]:
        lines += ["", "Not measured:", "", *(f"- {reason}" for reason in report["cannot"])]
    if with_targets:
        lines += ["", *end_to_end_targets(report)]
    return "\n".join(lines)


SECTIONS = {
    "targets": lambda name, report: targets_section("Attention", name, report),
    "targets-avx2": lambda name, report: targets_section("Attention on AVX2 alone", name, report),
    "seal": seal_section,
    "peers": lambda name, report: peers_section("End to end", name, report, True),
    "peers-gemma": lambda name, report: peers_section("End to end, Gemma 3 270M", name, report, False),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", default="build/benchmarks", help="where results are kept (default: %(default)s)")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, by comma (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=DOC, help="default: docs/benchmarks.md")
    options = parser.parse_args()
    folder = ROOT / options.keep
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in options.only.split(",") if name]
    for name in wanted:
        if name not in PARTS:
            parser.error(f"--only {name}: wanted some of {', '.join(PARTS)}")
        if not (folder / f"{name}.json").exists():
            run(name, folder)
    sections = [section(name, json.loads((folder / f"{name}.json").read_text())) for name, section in SECTIONS.items()
                if (folder / f"{name}.json").exists()]
    options.out.write_text("\n\n".join([HEAD.rstrip(), *sections]) + "\n")
    print(f"{options.out} written")


if __name__ == "__main__":
    main()
