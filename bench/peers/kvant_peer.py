"""Kvant itself, by its own program, beside its peers."""

import json

from folders import MEASURING, PEERS, ROOT, CannotRun, run

CACHE_TYPES = ["bf16", "int8", "int4"]
TEXT = ROOT / "data/wikitext2-test.txt"
NEAR = 40  # tokens by which a text that is cut at a token may read differently


def build():
    program = ROOT / "build/kvant"
    if not program.exists():
        raise CannotRun(f"{program} isn't there; make build makes it")
    return program


def prompt_file(program, model, count):
    """A text of about so many tokens. Its exact number is kvant's to say."""
    path = PEERS / f"prompt-{model.stem}-{count}.txt"
    if not path.exists():
        PEERS.mkdir(parents=True, exist_ok=True)
        text = TEXT.read_text()[:8 * count]
        words = PEERS / "words.txt"
        words.write_text(text)
        ids = json.loads(run([program, "tokenize", model, "--text-file", words, "--no-special", "--json"], "kvant tokenize"))["ids"]
        cut = PEERS / "ids.txt"
        cut.write_text(",".join(map(str, ids[:count])))
        path.write_text(run([program, "detokenize", model, "--ids-file", cut], "kvant detokenize").removesuffix("\n"))
    return path


def generate(program, model, cache, prompt, steps, options):
    text = run([program, "generate", model, "--prompt-file", prompt_file(program, model, prompt), "-n", steps, "--kv", cache,
                "--ignore-end", "--threads", options.threads, "--json"], f"kvant generate with a cache in {cache}",
               timeout=MEASURING)
    result = json.loads(text)
    if abs(result["prompt_tokens"] - prompt) > NEAR:
        raise CannotRun(f"kvant read {result['prompt_tokens']} tokens of a prompt of {prompt}")
    return result


def decode(program, model, cache, depth, options):
    """Tokens per second."""
    return [generate(program, model, cache, depth, options.steps, options)["decode_tok_s"]]


def first_token(program, model, cache, prompt, options):
    """Seconds, as if the prompt were of exactly so many tokens."""
    return [prompt / generate(program, model, cache, prompt, 1, options)["prefill_tok_s"]]
