#!/usr/bin/env python3
"""Decoding and time to first token of Kvant and its peers on one model, in turn, on one machine.

usage: bench/peers/run.py [--out FILE] [--only kvant,llama.cpp] [--depths 512,2048,8192] ...

Peers are built or installed into the cache folder ($KVANT_CACHE, peers/) the first time. Every repetition goes once
through all engines and cache types, because shared machines change their speed from minute to minute; printed are
medians, and in brackets the range. What can't run is named with the reason. Takes half an hour with the defaults: the
longest depth is read anew for every figure.
"""

import argparse
import json
import pathlib
import platform
import shlex
import statistics
import sys

import kvant_peer
import llama_cpp
import openvino_peer
from folders import MODEL, CannotRun, say

ENGINES = {"kvant": kvant_peer, "llama.cpp": llama_cpp, "openvino": openvino_peer}
CONTEXT = 8192  # of the model
SPARE = 64      # of these, for a text that reads in a few tokens more than it was cut to


def numbers(text):
    return [int(item) for item in text.split(",") if item]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL, help="a GGUF file (default: %(default)s)")
    parser.add_argument("--only", default=",".join(ENGINES), help="engines, by comma (default: %(default)s)")
    parser.add_argument("--caches", default="", help="cache types, by comma (default: all that an engine has here)")
    parser.add_argument("--depths", type=numbers, default=[512, 2048, 8192],
                        help="tokens in the cache while decoding; at most what leaves room for the steps (default: 512,2048,8192)")
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens that the model can hold (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=6000, help="tokens of the prompt for the first token, 0: none (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=64, help="tokens to decode (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of everything (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--build", action="store_true", help="build and install the peers, measure nothing")
    parser.add_argument("--out", type=pathlib.Path, help="write JSON here")
    options = parser.parse_args()
    for name in options.only.split(","):
        if name not in ENGINES:
            parser.error(f"--only {name}: wanted some of {', '.join(ENGINES)}")
    return options


def cases(options):
    """What to measure: (what, tokens)."""
    deepest = options.context - options.steps - SPARE
    listed = [("decode", min(depth, deepest)) for depth in options.depths]
    return listed + ([("first_token", options.prompt)] if options.prompt else [])


def build(options):
    """Programs by engine, and why the others can't run."""
    programs, cannot = {}, []
    for name in options.only.split(","):
        try:
            programs[name] = ENGINES[name].build()
        except CannotRun as reason:
            cannot.append(f"{name}: {reason}")
    return programs, cannot


def measure(programs, options, cannot):
    """[engine, cache, what, tokens] → samples. A combination that fails once isn't tried again."""
    samples, failed = {}, set()
    wanted = options.caches.split(",") if options.caches else None
    for repeat in range(options.repeats):
        for what, tokens in cases(options):
            for name, program in programs.items():
                for cache in ENGINES[name].CACHE_TYPES:
                    key = (name, cache, what, tokens)
                    if (name, cache) in failed or (wanted and cache not in wanted):
                        continue
                    try:
                        got = getattr(ENGINES[name], what)(program, options.model, cache, tokens, options)
                    except CannotRun as reason:
                        failed.add((name, cache))
                        cannot.append(str(reason))
                        continue
                    samples.setdefault(key, []).extend(got)
                    say(f"{repeat + 1}/{options.repeats} {name} {cache} {what} {tokens}: {got[-1]:.2f}")
    return samples


def rows_of(samples):
    rows = []
    for (engine, cache, what, tokens), values in samples.items():
        middle = statistics.median(values)
        rows.append({"engine": engine, "cache": cache, "what": what, "tokens": tokens, "median": middle,
                     "spread": (max(values) - min(values)) / middle, "samples": values})
    return rows


def table(rows):
    columns = list(dict.fromkeys((row["what"], row["tokens"]) for row in rows))
    titles = [f"tok/s at {tokens:,}" if what == "decode" else f"first of {tokens:,}, s" for what, tokens in columns]
    lines = ["| engine | cache | " + " | ".join(titles) + " |", "| --- | --- |" + " ---: |" * len(titles)]
    for engine, cache in dict.fromkeys((row["engine"], row["cache"]) for row in rows):
        cells = {(row["what"], row["tokens"]): f"{row['median']:.1f} (±{row['spread'] / 2:.0%})" for row in rows
                 if (row["engine"], row["cache"]) == (engine, cache)}
        lines.append(f"| {engine} | {cache} | " + " | ".join(cells.get(column, "") for column in columns) + " |")
    return "\n".join(lines)


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def main():
    options = parse()
    if not options.model.exists():
        sys.exit(f"{options.model}: not there; tools/setup.sh models makes it")
    programs, cannot = build(options)
    if options.build:
        print("\n".join([f"{name}: {program}" for name, program in programs.items()] + cannot))
        return
    rows = rows_of(measure(programs, options, cannot))
    command = shlex.join(["bench/peers/run.py", *sys.argv[1:]])
    report = {"model": options.model.name, "cpu": cpu_name(), "threads": options.threads, "steps": options.steps,
              "repeats": options.repeats, "command": command, "cannot": cannot,
              "versions": {"llama.cpp": llama_cpp.VERSION, "openvino": " ".join(openvino_peer.PACKAGES)}, "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(rows))
    for sentence in cannot:
        print(f"\nnot measured: {sentence}")


if __name__ == "__main__":
    main()
