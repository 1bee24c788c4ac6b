"""Where peers are kept and how commands run: everything lands in a cache folder outside the repository."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = pathlib.Path(os.environ.get("KVANT_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "kvant")
PEERS = CACHE / "peers"
MODEL = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"


MEASURING = 30 * 60  # seconds after which one measurement is given up


class CannotRun(Exception):
    """A sentence that says why a peer, or one of its cache types, can't be measured here."""


def say(text):
    print("peers:", text, file=sys.stderr, flush=True)


def run(command, what, **options):
    """What the command prints. CannotRun with the end of its complaint if it fails."""
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    except subprocess.TimeoutExpired as late:
        raise CannotRun(f"{what}: not done after {late.timeout / 60:.0f} minutes") from late
    except OSError as error:
        raise CannotRun(f"{what}: {error}") from error
    if done.returncode:
        signal = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        lines = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        raise CannotRun(f"{what}: {signal}" + (f": {lines[-1].strip()[:200]}" if lines else ""))
    return done.stdout


def cpu_flags():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()
