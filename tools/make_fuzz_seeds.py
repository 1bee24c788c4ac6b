#!/usr/bin/env python3
"""Writes the fuzz targets' seeds that aren't found but made: tests/data/fuzz/<target>/*.

Small files that reach every reader, step and layout at least once, so that mutations start deep. Templates are written by
hand (template_fuzz/*.jinja); inputs that once crashed or hung lie beside these under names that say what they did.

usage: make_fuzz_seeds.py     (needs nothing but Python)
"""
import json
import pathlib
import random
import struct

FUZZ = pathlib.Path(__file__).resolve().parent.parent / "tests/data/fuzz"


def write(target, name, data):
    path = FUZZ / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


# ---- Tokenizers
def byte_alphabet():
    """The 256 characters that stand for bytes in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    table = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(other)}
    return [table[b] for b in range(256)]


LETTERS = "Helowrd12 ab\u00f6"
SPM = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581a", "\u2581ab", "H", "e", "l", "o", "lo", "\u2581\u2581"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def bpe(tokens, merges, **more):
    return {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges, **more}


def sequence(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


def byte_level_tokenizer():
    return {
        "model": bpe(byte_alphabet() + ["lo", "He", "Hello", "\u0120w"], ["l o", ["H", "e"], "\u0120 w"], ignore_merges=True),
        "added_tokens": [
            {"id": 300, "content": "<s>", "special": True, "lstrip": True, "rstrip": True},
            {"id": 301, "content": "aa", "single_word": True, "normalized": True},
        ],
        "normalizer": sequence("normalizers", {"type": "NFC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_right": False}),
        "pre_tokenizer": sequence(
            "pretokenizers",
            {"type": "Digits", "individual_digits": True},
            {"type": "Split", "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}),
        "decoder": {"type": "ByteLevel"},
        "post_processor": sequence(
            "processors", {"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
             "special_tokens": {"<s>": {"ids": [300]}}}),
    }


def sentencepiece_tokenizer():
    return {
        "model": bpe(SPM + BYTES, ["l o", "\u2581 a", "a b", "\u2581a b"], unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        "added_tokens": [{"id": i, "content": SPM[i], "special": True} for i in range(3)],
        "normalizer": sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"},
                               {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}),
        "decoder": sequence("decoders", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    }


def unigram_tokenizer():
    return {
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [[t, -1.5 * i] for i, t in enumerate(SPM)]},
        "normalizer": sequence("normalizers", {"type": "NFKC"}, {"type": "NFKD"}, {"type": "NFD"}),
        "pre_tokenizer": sequence("pretokenizers", {"type": "WhitespaceSplit"},
                                  {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}),
        "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
    }


def splitting_tokenizer():
    split = [{"type": "Split", "pattern": {"Regex": p}, "behavior": b, "invert": i} for p, b, i in (
        ("l+", "MergedWithPrevious", False), ("\\d", "MergedWithNext", True), ("[ab]", "Contiguous", False), ("\\s", "Removed", False))]
    return {
        "model": bpe(list(LETTERS) + ["ab"], ["a b"]),
        "normalizer": {"type": "Replace", "pattern": {"Regex": "(e|l){2}"}, "content": "l"},
        "pre_tokenizer": sequence("pretokenizers", *split, {"type": "Punctuation", "behavior": "Isolated"}, {"type": "Whitespace"}),
        "decoder": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"},
    }


def tokenizer_seeds():
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True, "chat_template": "{{ 1 }}"}
    rows = {"byte_level": byte_level_tokenizer(), "sentencepiece": sentencepiece_tokenizer(), "unigram": unigram_tokenizer(),
            "splits": splitting_tokenizer()}
    for name, tokenizer in rows.items():
        text = json.dumps(tokenizer, ensure_ascii=name != "unigram", separators=(",", ":"))
        write("tokenizer_json_fuzz", name, text)
        if name in ("sentencepiece", "splits"):
            write("tokenizer_json_fuzz", name + "_configured", "\0".join([text, " a ab\n<s> \u00e9b 12", json.dumps(config)]))


# ---- GGUF
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = dict(zip(range(13), ["B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d"]))


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(kind, value):
    if kind == STRING:
        return gguf_string(value)
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(gguf_value(element, v) for v in items)
    return struct.pack("<" + PACK[kind], value)


def gguf(metadata, tensors=(), version=3):
    """tensors: name, dims, type, bytes."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for name, kind, value in metadata:
        head += gguf_string(name) + struct.pack("<I", kind) + gguf_value(kind, value)
    data = b""
    for name, dims, kind, content in tensors:
        data += b"\0" * (-len(data) % 32)
        head += gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += content
    return head + b"\0" * (-len(head) % 32) + data


def gguf_tokenizer(model, tokens, types=None, **more):
    rows = [("general.architecture", STRING, more.pop("architecture", "llama")), ("tokenizer.ggml.model", STRING, model),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, types or [1] * len(tokens)))]
    for name, (kind, value) in more.items():
        rows.append(("tokenizer.ggml." + name, kind, value))
    return gguf(rows)


def gguf_seeds():
    scalars = [(f"k{kind}", kind, {BOOL: True, STRING: "text"}.get(kind, 7)) for kind in range(13) if kind != ARRAY]
    arrays = [(f"a{kind}", ARRAY, (kind, {BOOL: [True], STRING: ["a", ""]}.get(kind, [1, 2]))) for kind in range(13) if kind != ARRAY]
    types = {0: (4, 1), 1: (2, 1), 2: (18, 32), 8: (34, 32), 30: (2, 1), 12: (144, 256)}  # type: bytes and elements of a block
    tensors = [(f"t{t}", [block * 2, 1], t, bytes(2 * size)) for t, (size, block) in types.items()]
    write("gguf_fuzz", "values", gguf([("general.alignment", U32, 32)] + scalars + arrays, tensors))
    write("gguf_fuzz", "version2", gguf(scalars[:3], tensors[:1], version=2))
    kinds = [2, 3, 3] + [1] * (len(SPM) - 3) + [6] * 256
    scores = (ARRAY, (F32, [-float(i) for i in range(len(kinds))]))
    write("gguf_fuzz", "llama", gguf_tokenizer("llama", SPM + BYTES, kinds, scores=scores, bos_token_id=(U32, 1),
                                              eos_token_id=(U32, 2), unknown_token_id=(U32, 0), add_eos_token=(BOOL, True)))
    write("gguf_fuzz", "gemma", gguf_tokenizer("llama", SPM + ["  "], None, architecture="gemma3", add_space_prefix=(BOOL, False)))
    write("gguf_fuzz", "phi3", gguf_tokenizer("llama", SPM, [2, 3, 4] + kinds[3:len(SPM)], architecture="phi3",
                                             scores=(ARRAY, (F64, [0.5] * len(SPM)))))
    write("gguf_fuzz", "t5", gguf_tokenizer("t5", SPM, scores=(ARRAY, (F32, [-1.5 * i for i in range(len(SPM))])),
                                           unknown_token_id=(U32, 0)))
    alphabet = byte_alphabet() + ["lo", "<|im_end|>"]
    for pre in ("smollm", "llama-bpe"):
        write("gguf_fuzz", pre, gguf_tokenizer("gpt2", alphabet, [1] * 257 + [3], pre=(STRING, pre), merges=(ARRAY, (STRING, ["l o"])),
                                               eot_token_id=(U32, 257)))


# ---- Safetensors
def safetensors(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors_seeds():
    sizes = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for i, (dtype, size) in enumerate(sizes.items()):
        header[f"t{i}"] = {"dtype": dtype, "shape": [2, i % 3], "data_offsets": [at, at := at + 2 * (i % 3) * size]}
    write("safetensors_fuzz", "dtypes", safetensors(header, bytes(range(at))))
    write("safetensors_fuzz", "scalar", safetensors({"s": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, bytes(4)))
    write("safetensors_fuzz", "empty", safetensors({}))
    write("safetensors_fuzz", "index", json.dumps({"metadata": {"total_size": 4}, "weight_map": {"x": "a", "y": "b"}}))
    write("safetensors_fuzz", "index_wrong_shard", json.dumps({"weight_map": {"x": "b", "y": "a"}}))


# ---- Codecs
def codec_seeds():
    rng = random.Random(1)
    for flags in range(8):
        for dim in (3, 7):
            content = bytes(rng.randrange(256) for _ in range(96))
            write("codecs_fuzz", f"flags{flags}_dim{dim}", struct.pack("<HBB", rng.randrange(1 << 16), flags, dim) + content)
    # What the float patterns of random bytes hardly hold: zeros, one value, the largest, subnormals, an outlier.
    patterns = {"zeros": [0.0], "constant": [1.25], "huge": [3.4e38, -3.4e38], "tiny": [1e-40, -1e-42], "outlier": [0.1] * 40 + [3e4],
                "not_finite": [float("inf"), float("nan"), 1.0]}
    for name, values in patterns.items():
        for side in (0, 1):
            data = struct.pack(f"<{len(values)}f", *values)
            write("codecs_fuzz", f"{name}_side{side}", struct.pack("<HBB", rng.randrange(1 << 16), 4 + side, 3) + data)


tokenizer_seeds()
gguf_seeds()
safetensors_seeds()
codec_seeds()
