#!/usr/bin/env python3
"""Counts the instructions of five page kernels on AVX2 and compares them with bench/instruction_counts.json.

usage: tools/check_instruction_counts.py [--update]     (needs build/bench/kvant_kernel_counts and valgrind)

Exits 1 if a kernel takes more than TOLERANCE above what is committed. Fewer are reported, too: --update keeps them,
so that the gate stays tight. The counts repeat to the digit with one compiler; another one's differ for no fault of the
code, which is why the file names it.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ROOT / "bench/instruction_counts.json"
PROGRAM = ROOT / "build/bench/kvant_kernel_counts"
TOLERANCE = 0.02  # what another inlining of the same code may cost
ISA = "avx2"      # valgrind hides AVX-512


def run(command):
    done = subprocess.run(command, env={**os.environ, "KVANT_FORCE_ISA": ISA}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def count(name):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "callgrind"
        run(["valgrind", "--tool=callgrind", "--toggle-collect=kvant_counted_call", f"--callgrind-out-file={out}", PROGRAM, name])
        total = int(re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.M).group(1))
    if total == 0:
        sys.exit(f"{name}: callgrind counted nothing; is kvant_counted_call a function of its own?")
    return total


def compiler():
    """Of the build that is counted."""
    cache = (ROOT / "build/CMakeCache.txt").read_text()
    path = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", cache, re.M).group(1)
    return run([path, "--version"]).splitlines()[0]


def verdict(counted, kept):
    if kept is None:
        return "new: --update keeps it"
    change = counted / kept - 1
    if change > TOLERANCE:
        return f"{change:+.1%}: more than {TOLERANCE:.0%} above"
    if change < -TOLERANCE:
        return f"{change:+.1%}: fewer; --update keeps them"
    return f"{change:+.1%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write what was counted to bench/instruction_counts.json")
    options = parser.parse_args()
    if platform.machine() != "x86_64":
        print(f"not counted: {platform.machine()} has no {ISA}")
        return
    for needed in (PROGRAM, shutil.which("valgrind")):
        if not needed or not os.path.exists(needed):
            sys.exit(f"{needed or 'valgrind'}: not there; tools/setup.sh dev and make build make it")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"compiler": "", "counts": {}}
    counted = {name: count(name) for name in run([PROGRAM]).split()}
    for name, number in counted.items():
        old = kept["counts"].get(name)
        print(f"{name:34} {number:>10,} instructions, kept {old or 0:>10,}  {verdict(number, old)}")
    if options.update:
        KEPT.write_text(json.dumps({"compiler": compiler(), "counts": counted}, indent=1) + "\n")
        print(f"{KEPT.relative_to(ROOT)} written")
        return
    failed = [name for name, number in counted.items() if number > kept["counts"].get(name, 0) * (1 + TOLERANCE)]
    gone = sorted(kept["counts"].keys() - counted.keys())
    if failed or gone:
        note = "" if compiler() == kept["compiler"] else f"; they were counted with {kept['compiler']}, this is {compiler()}"
        sys.exit("\n".join([f"FAILED: {name} takes more instructions than are kept{note}" for name in failed] +
                           [f"FAILED: {name} is kept, but isn't counted any more" for name in gone] +
                           ["If that is meant: tools/check_instruction_counts.py --update"]))


if __name__ == "__main__":
    main()
