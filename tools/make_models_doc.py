#!/usr/bin/env python3
"""Makes docs/models.md: what each of the published configurations in tests/data/configs keeps, as kvant plan tells it.

usage: tools/make_models_doc.py [--check]     (needs build/kvant; --check only compares with the file that is there)
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVANT = ROOT / "build/kvant"
CONFIGS = ROOT / "tests/data/configs"
DOC = ROOT / "docs/models.md"
NO_CONFIGS = {"expected", "expected_variants", "by_hand", "variants"}  # what lies beside them
FORMATS = ["bf16", "int8", "int4"]
TOKENS = 32768

HEAD = """# Models

What the {count} published configurations of tests/data/configs keep between tokens; tests/data/configs/SOURCES.tsv says where each
comes from. Made by

```
tools/make_models_doc.py        # runs kvant plan FILE --tokens 32k --kv bf16,int8,int4 --json on every file
```

`tests/plan/configs_test.cc` compares the layers of each with what the model's own code caches.

- **layers**: how many of each kind. `latent` stores one vector for all heads, `compressed` one for several tokens, `indexer` the keys of a
  sparse-attention indexer beside its layer; `shared` reads another layer's cache, `state` is constant, `none` keeps nothing.
- **heads**: KV heads × (K + V channels) of a layer; one number for what is stored once.
- **B/token**: bytes of one more token of the text in bf16, before any window is full and after all are; a source that layers cross to is
  paid for once.
- **state**: constant bytes of a sequence, whatever its length.
- **32k in …**: the cache of one sequence of 32,768 tokens as the pool holds it, in pages, with scales, the first page exact; states not
  included. Latents and indexer keys stay in bf16 in every format.
"""


def config_files():
    files = (path for path in CONFIGS.glob("*.json") if path.stem not in NO_CONFIGS)
    return sorted(files, key=lambda path: path.stem)


def plan(path):
    """The plan as JSON, or the sentence of a refusal."""
    command = [KVANT, "plan", path.name, "--tokens", str(TOKENS), "--kv", ",".join(FORMATS), "--json"]
    run = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
    if run.returncode == 0:
        return json.loads(run.stdout), None
    return None, run.stderr.strip().removeprefix("kvant: ")


def human(size):
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            break
        size /= 1000
    if unit == "B":
        return f"{size:g} B"
    return f"{size:.{max(0, 3 - len(str(int(size))))}f} {unit}"


def distinct(items):
    return ", ".join(dict.fromkeys(items)) or "-"


def streams_of(layer):
    if layer["kind"] in ("shared", "state", "none"):
        return []
    return layer.get("streams", [layer])


def kinds(layers):
    counts = collections.Counter()
    for layer in layers:
        names = [stream["kind"] for stream in streams_of(layer)] or [layer["kind"]]
        if layer["fixed_bytes"] > 0 and layer["kind"] != "state":
            names.append("state")
        counts[" + ".join(names)] += 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def heads(stream):
    widths = f"({stream['k_dim']} + {stream['v_dim']})" if stream["v_dim"] else f"{stream['k_dim']}"
    return f"{stream['kv_heads']} × {widths}"


def row(path, answer):
    streams = [stream for layer in answer["layers"] for stream in streams_of(layer)]
    rows = answer["rows"]
    per_token = [f"{rows[0][key]:,.12g}" for key in ("bytes_per_token", "bytes_per_token_long")]
    state = rows[0]["state_bytes"]
    return [
        path.stem,
        answer["architecture"],
        kinds(answer["layers"]),
        distinct(heads(stream) for stream in streams),
        distinct(str(stream["window"]) for stream in streams if stream["window"]),
        " / ".join(dict.fromkeys(per_token)),
        human(state) if state else "-",
        *(human(r["kv_bytes"]) for r in rows),
    ]


def line(cells):
    return "| " + " | ".join(cells) + " |\n"


def document():
    files = config_files()
    text = HEAD.format(count=len(files)) + "\n"
    titles = ["model", "architecture", "layers", "heads", "window", "B/token", "state"]
    text += line(titles + [f"32k in {name}" for name in FORMATS])
    text += line(["---"] * 5 + ["---:"] * (2 + len(FORMATS)))
    notes, refusals = "", ""
    for path in files:
        answer, refusal = plan(path)
        if refusal:
            refusals += f"- {refusal}\n"
            continue
        text += line(row(path, answer))
        if answer["notes"]:
            notes += f"- {path.stem}\n" + "".join(f"  - {note}\n" for note in answer["notes"])
    if refusals:
        text += "\n## Refused\n\n" + refusals
    return text + "\n## Notes\n\nWhat was assumed, derived or left out.\n\n" + notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if docs/models.md isn't what would be written")
    arguments = parser.parse_args()
    text = document()
    if not arguments.check:
        DOC.write_text(text)
    elif not DOC.exists() or DOC.read_text() != text:
        sys.exit("FAILED: docs/models.md isn't what kvant plan says of these files; tools/make_models_doc.py writes it anew")


if __name__ == "__main__":
    main()
