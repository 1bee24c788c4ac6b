"""OpenVINO GenAI as a peer: its wheels in a virtual environment, and the same GGUF file as its model.

The release that is tested is pinned; it reads GGUF of a few architectures and weight types by itself. What it can't read,
it says in its error.
"""

import json
import pathlib
import sys

from folders import MEASURING, PEERS, run, say

PACKAGES = ["openvino-genai==2026.4.1.0"]
CACHE_TYPES = ["f16", "u8", "u4"]
ENVIRONMENT = PEERS / "openvino"
SCRIPT = pathlib.Path(__file__).resolve().with_name("openvino_run.py")


def build():
    """Path of the environment's Python."""
    python, done = ENVIRONMENT / "bin/python3", ENVIRONMENT / "installed"
    wanted = " ".join(PACKAGES)
    if not done.exists() or done.read_text() != wanted:
        say(f"installing {wanted}")
        run([sys.executable, "-m", "venv", ENVIRONMENT], "no virtual environment")
        run([python, "-m", "pip", "install", "-q", *PACKAGES], f"pip can't install {wanted}")
        done.write_text(wanted)
    return python


def measure(python, model, cache, prompt, steps, options):
    text = run([python, SCRIPT, model, cache, options.threads, prompt, steps, 1], f"OpenVINO GenAI with a cache in {cache}",
               timeout=MEASURING)
    return json.loads(text.splitlines()[-1])["rows"]


def decode(python, model, cache, depth, options):
    """Tokens per second."""
    return [row["tokens_per_s"] for row in measure(python, model, cache, depth, options.steps, options)]


def first_token(python, model, cache, prompt, options):
    """Seconds."""
    return [row["first_token_s"] for row in measure(python, model, cache, prompt, 1, options)]
