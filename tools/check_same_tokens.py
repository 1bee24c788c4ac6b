#!/usr/bin/env python3
"""Whether `kvant serve` gives the tokens that `kvant generate` gives.

Requests of mixed lengths and parameters are each run by `kvant generate`, in a process of its own,
and then sent to `kvant serve` in random order, many at once: with the prefix cache on and off, and
in a pool so small that answers are swapped out. Texts, tokens and reasons to finish must be equal.

    tools/check_same_tokens.py build/kvant MODEL [--requests 200] [--concurrency 16] [--kv int8] [--seed 1]
"""
import argparse
import concurrent.futures
import json
import random
import re
import subprocess
import sys
import time
import urllib.request

TEXT = "data/alice.txt"
# Pools of pages: one that holds all, and one of a few sequences.
POOLS = ("1G", "24M")


def mixed_requests(count, rng):
    with open(TEXT, encoding="utf-8") as file:
        words = file.read().split()
    beginnings = [" ".join(words[at : at + 200]) for at in (1000, 5000, 9000)]
    requests = []
    for _ in range(count):
        at = rng.randrange(len(words) - 400)
        prompt = " ".join(words[at : at + rng.choice((3, 20, 80, 250))])
        if rng.random() < 0.4:
            prompt = rng.choice(beginnings) + " " + prompt
        request = {"prompt": prompt, "chat": rng.random() < 0.4, "max_tokens": rng.randint(1, 64)}
        request["temperature"] = rng.choice((0, 0, 0.7, 1.2))
        request["seed"] = rng.randrange(10**6)
        for name, values in (
            ("top_k", (5, 50)),
            ("top_p", (0.8, 0.95)),
            ("min_p", (0.02, 0.1)),
            ("repetition_penalty", (1.05, 1.3)),
            ("stop", (["."], [",", " the"])),
            ("ignore_eos", (True,)),
        ):
            if rng.random() < 0.3:
                request[name] = rng.choice(values)
        requests.append(request)
    return requests


def generate(args, request):
    """Tokens, text and reason by the command, in a process of its own."""
    command = [args.kvant, "generate", args.model, "--kv", args.kv, "--json", "-p", request["prompt"]]
    command += ["-n", str(request["max_tokens"]), "--chat"] if request["chat"] else ["-n", str(request["max_tokens"])]
    options = {"temperature": "--temperature", "seed": "--seed", "top_k": "--top-k", "top_p": "--top-p"}
    options.update({"min_p": "--min-p", "repetition_penalty": "--repeat-penalty"})
    for name, option in options.items():
        # The command notes that greedy answers ignore what shapes sampling, as the server does.
        if name in request:
            command += [option, str(request[name])]
    for stop in request.get("stop", []):
        command += ["--stop", stop]
    if request.get("ignore_eos"):
        command.append("--ignore-end")
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(run.stdout)
    return {key: answer[key] for key in ("tokens", "text", "finish_reason")}


class Server:
    """kvant serve on a free port, until the end of a `with`."""

    def __init__(self, args, *options):
        command = [args.kvant, "serve", args.model, "--kv", args.kv, "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if match := re.match(r"serving  .* at (http\S+)", line):
                self.url = match[1]
                return
        sys.exit("the server ended before it served")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics") as response:
            return float(re.search(rf"^kvant:{name}\{{.*\}} (\S+)$", response.read().decode(), re.M)[1])

    def spelled(self, tokens):
        return self.post("/detokenize", {"tokens": tokens})["prompt"]


def ask(server, request):
    body = {key: value for key, value in request.items() if key not in ("prompt", "chat")}
    if request["chat"]:
        body.update(messages=[{"role": "user", "content": request["prompt"]}], logprobs=True)
        choice = server.post("/v1/chat/completions", body)["choices"][0]
        text, tokens = choice["message"]["content"], [t["token"] for t in choice["logprobs"]["content"]]
    else:
        body.update(prompt=request["prompt"], logprobs=0)
        choice = server.post("/v1/completions", body)["choices"][0]
        text, tokens = choice["text"], choice["logprobs"]["tokens"]
    return {"tokens": tokens, "text": text, "finish_reason": choice["finish_reason"]}


def differs(server, alone, served):
    """Tokens are ids there and spelled here; those that aren't UTF-8 by themselves are compared as text."""
    if alone["text"] != served["text"] or alone["finish_reason"] != served["finish_reason"]:
        return True
    if len(alone["tokens"]) != len(served["tokens"]):
        return True
    pairs = zip(alone["tokens"], served["tokens"])
    return any(not t.startswith(("bytes:", "<|")) and server.spelled([i]) != t for i, t in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("kvant")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--kv", default="int8")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    requests = mixed_requests(args.requests, rng)
    begin = time.time()
    alone = [generate(args, request) for request in requests]
    tokens = sum(len(answer["tokens"]) for answer in alone)
    print(f"generate: {len(alone)} requests, {tokens} tokens, {time.time() - begin:.0f} s (seed {args.seed})", flush=True)
    failed = False
    for cache in ("on", "off"):
        for memory in POOLS:
            begin = time.time()
            with Server(args, "--prefix-cache", cache, "--memory", memory) as server:
                order = list(range(len(requests)))
                rng.shuffle(order)
                with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
                    served = list(pool.map(lambda i: ask(server, requests[i]), order))
                wrong = [i for i, answer in zip(order, served) if differs(server, alone[i], answer)]
                print(
                    f"serve --prefix-cache {cache} --memory {memory}: {len(order) - len(wrong)} of {len(order)} equal, "
                    f"{server.metric('num_preemptions_total'):.0f} swapped out, "
                    f"{server.metric('prefix_cache_hits_total'):.0f} prompt tokens found, {time.time() - begin:.0f} s",
                    flush=True,
                )
            for i in wrong:
                failed = True
                print(f"  request {i}: {requests[i]}\n    alone  {alone[i]}\n    served {served[order.index(i)]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
