#!/usr/bin/env python3
"""Runs schemathesis over /openapi.json of a server that it starts, with every check.

    python3 -m venv ~/schemathesis && ~/schemathesis/bin/pip install schemathesis
    ~/schemathesis/bin/python tools/check_openapi.py MODEL [options of schemathesis run]

Schemathesis imports this file, too, for the hook below.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

import schemathesis

ROOT = pathlib.Path(__file__).resolve().parent.parent


def contradicts_itself(body):
    """What JSON Schema can't say of a body, and the descriptions do."""
    def number(name, default):
        value = body.get(name)
        return default if value is None else value

    default = 1 << 32 if "messages" in body else 16
    most = number("max_completion_tokens", number("max_tokens", default))
    best_of = number("best_of", number("n", 1))
    return (number("min_tokens", 0) > most or best_of < number("n", 1)
            or ((body.get("stream") is True or body.get("use_beam_search") is True) and best_of > number("n", 1)))


def may_be_too_long(body):
    """For the server's 512 tokens: a token is a byte at least."""
    texts = [body.get(name) for name in ("prompt", "messages", "tools")]
    return len(json.dumps(texts, ensure_ascii=False).encode(errors="replace")) > 400


def takes_long(body):
    """Thousands of tokens on a machine that may be small."""
    answers = max(body.get("n") or 1, body.get("best_of") or 1)
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    most = most or (512 if "messages" in body else 16)
    return answers * min(most, 512) > 1000


@schemathesis.hook
def filter_body(context, body):
    try:
        return not (isinstance(body, dict) and
                    (contradicts_itself(body) or may_be_too_long(body)
                     or takes_long(body)))
    except TypeError:  # a wrong type is meant to be refused
        return True


def main():
    model, options = sys.argv[1], sys.argv[2:]
    server = subprocess.Popen(
        [ROOT / "build/kvant", "serve", model, "--kv", "int8", "--max-model-len", "512",
         "--memory", "256M", "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        found = next((m for line in server.stderr if (m := re.search(r" at (http://\S+)", line))),
                     None)
        if not found:
            sys.exit("kvant serve ended before it served")
        return subprocess.run(
            [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run",
             found[1] + "/openapi.json", "--checks", "all",
             "--request-timeout", "300",
             "--max-response-time", "300", *options],
            env={**os.environ, "SCHEMATHESIS_HOOKS": "check_openapi",
                 "PYTHONPATH": str(ROOT / "tools")}).returncode
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
