#!/usr/bin/env python3
"""Checks what a compiler doesn't: imports between rooms go one way, `#if` stays in its rooms, no file outgrows its noun.

Prints one line per violation and exits 1 if there is one.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A room may include itself, include/kvant and the rooms before it.
ORDER = ["base", "simd", "files", "formats", "cache", "attention", "plan", "model", "engine", "calibrate", "evaluate",
         "load", "report", "server"]
# Where conditional compilation may live: instruction sets, and the kernels compiled once per instruction set.
CONDITIONAL_ROOMS = ("src/simd/", "src/cuda/", "src/formats/kernels/")
CONDITIONAL_PER_1000_LINES = 4
MAX_LINES = 500
LONGER = ("src/formats/kernels/",)  # kernels may be longer, never branchier

INCLUDE = re.compile(r'^\s*#include "([a-z0-9_]+)/', re.M)


def room_of(path):
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "src" else parts[0]


def violations():
    sources = [p for d in ("src", "include", "cli", "server", "python", "examples")
               for p in sorted((ROOT / d).rglob("*")) if p.suffix in (".h", ".cc", ".cu", ".cuh")]
    conditionals = lines_outside = 0
    for path in sources:
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        room = room_of(path)
        for included in INCLUDE.findall(text):
            if included not in ORDER or room == included:
                continue
            if room in ORDER and ORDER.index(included) > ORDER.index(room):
                yield f"{name}: room {room} includes {included}, which comes after it"
            if room == "include":
                yield f"{name}: a public header includes the inner room {included}"
        count = len(text.splitlines())
        if count > MAX_LINES and not name.startswith(LONGER):
            yield f"{name}: {count} lines, more than {MAX_LINES}"
        if not name.startswith(CONDITIONAL_ROOMS):
            lines_outside += count
            conditionals += len(re.findall(r"^\s*#\s*(?:if|elif|ifdef|ifndef)\b", text, re.M))
    allowed = CONDITIONAL_PER_1000_LINES * lines_outside / 1000
    if conditionals > allowed:
        yield f"{conditionals} #if outside {', '.join(CONDITIONAL_ROOMS)}; at most {allowed:.0f} for {lines_outside} lines"


if __name__ == "__main__":
    found = list(violations())
    print("\n".join(found) or "layers: ok")
    sys.exit(1 if found else 0)
