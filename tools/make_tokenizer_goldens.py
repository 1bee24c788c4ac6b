#!/usr/bin/env python3
"""Makes tests/data/tokenizers: strings, small tokenizers trained on them, and the ids that `tokenizers` gives.

  tools/make_tokenizer_goldens.py [--models DIR] [--corpus DIR]

Needs the Python packages tokenizers, transformers and gguf. --corpus is a folder with XQuAD texts (text.<lang>.txt, xquad.en.json,
xquad.zh.json); without it the strings that are there already are used again. --models is the folder with the two GGUF
files (default: where tools/setup.sh puts them); a file that isn't there keeps its goldens.

Files: strings.txt has one string a line, bytes that aren't printable UTF-8 as \\xNN. NAME.ids is, for every string, the
number of ids and the ids, all LEB128; then the same for the first 40 strings with special tokens added. NAME.decode has
lists of ids in the same way, NAME.decode.txt their texts with special tokens and without, line by line.
"""
import argparse
import json
import os
import random
import re
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/data/tokenizers"
LANGUAGES = ["en", "zh", "ar", "de", "el", "es", "hi", "ro", "ru", "th", "tr", "vi"]
NUM_WITH_SPECIAL = 40

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


# ---- Strings
def paragraphs(corpus, language):
    if language in ("en", "zh"):
        data = json.loads((corpus / f"xquad.{language}.json").read_text("utf-8"))["data"]
        return [p["context"] for article in data for p in article["paragraphs"]]
    return [line for line in (corpus / f"text.{language}.txt").read_text("utf-8").split("\n") if line]


def language_strings(corpus, rng):
    for language in LANGUAGES:
        texts = paragraphs(corpus, language)
        for _ in range(62):
            text = rng.choice(texts)
            size = rng.choice([20, 60, 120, 200])
            begin = rng.randrange(max(1, len(text) - size))
            yield text[begin:begin + size]


def code_strings(rng):
    sources = sorted((ROOT / "src").rglob("*.h")) + sorted((ROOT / "src/base").rglob("*.cc")) + [Path(__file__)]
    for _ in range(70):
        lines = rng.choice(sources).read_text("utf-8").split("\n")
        begin = rng.randrange(len(lines))
        yield "\n".join(lines[begin:begin + rng.choice([1, 2, 4, 7])])
    yield "def f(x):\n\tif x:\n\t\treturn {'a': [1, 2.5e-3], \"b\": None}\n\n\n\nprint(f(0x1F))\n"
    yield "for (int i = 0; i < n; ++i) { a[i] += b[i]->c * 0xFFu; } // done\r\n\r\n"
    yield "<html>\n  <body class='x'>\n    <p>a &amp; b</p>\n  </body>\n</html>"
    yield "SELECT * FROM t WHERE a='it''s' AND b>=10;"


ODD = ("😀 🤖 👩‍👩‍👧‍👦 🇩🇪 ❤️ 👍🏽 ☕ 🏳️‍🌈 ① Ⅷ ½ ² ٣ ४ 𝟘 é é ñ ñ Å Å ﬁ ﷽ ß ẞ ſ K İ ı ǅ œ ﬀ Ω Ω ｆｕｌｌ ㍿ ㌔ 가 각 ก็ ำ "
       "שָׁלוֹם ﻿ \u200b \u200d \u2028 \u2029 \u00a0 \u3000 \u1680 \u180e \u0085 \u2009 \ufeff \ufffd \U0001F9D1\u200d\U0001F4BB \u0301 a\u0308 ▁ Ġ Ċ "
       "’s 'S 'ſ 'LL 'll 'Re I'm we'VE it's don't they'd — – … “q” «q» ¿? ¡! ™ © ° µ ± × ÷ € £ ¥ ₹ $ % ^ & * ~ ` | \\ / _ __x__").split(" ")


def odd_strings(rng):
    yield from (o for o in ODD if o)
    for _ in range(60):
        yield rng.choice(["", " ", "  "]).join(rng.choice(ODD) for _ in range(rng.randrange(2, 12)))
    spaces = [" ", "  ", "    ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u180e"]
    words = ["a", "The", "x1", "12", "é", "中", ".", "!!", "'s", "▁", "_"]
    for _ in range(110):
        yield "".join(rng.choice(spaces if rng.random() < 0.6 else words) for _ in range(rng.randrange(1, 14)))
    for n in (1, 2, 3, 5, 16, 31, 32, 33, 100, 300):
        yield " " * n
        yield "x" + " " * n + "y"
        yield "\n" * n
        yield "\t" * n + "z"
    yield ""
    for c in list(range(0x20)) + [0x7f, 0x80, 0x9f, 0xad]:
        yield f"a{chr(c)}b {chr(c)}{chr(c)}"
    for _ in range(60):
        digits = "".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 18)))
        yield rng.choice(["", " ", "x", "$", "-"]) + digits + rng.choice(["", ".5", "%", " km", "th", ",000", "٣", "²"])
    for _ in range(40):
        yield "".join(chr(rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x370, 0x1200), rng.randrange(0x2000, 0x2c00),
                                      rng.randrange(0x3040, 0xa000), rng.randrange(0x1f300, 0x1f700)])) for _ in range(12))
    yield "ab" * 400
    yield "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    yield " wonderfulness wonderful wonderfulnesses"
    yield "supercalifragilisticexpialidocious" * 6


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<s>", "</s>", "<unk>", "<bos>", "<eos>", "<pad>",
           "<start_of_turn>", "<end_of_turn>", "<0x0A>", "<tool_call>", "</tool_call>", "<mask>", "[WORD]", "[LEFT]", "[RIGHT]", "[Norm]",
           "<b>", "</b>", "<table>", "<unused1>", "<repo_name>", "<|im_start", "im_end|>", "<<s>>"]


def special_strings(rng):
    for s in SPECIAL:
        yield s
        yield f"a {s} b"
        yield f"a{s}{s}b "
    for _ in range(50):
        parts = [rng.choice(SPECIAL) if rng.random() < 0.5 else rng.choice(["hello", " ", "user\n", "x", "  ", "\n\n", "é", "12"])
                 for _ in range(rng.randrange(2, 9))]
        yield "".join(parts)


def invalid_strings(rng):
    bad = [b"\x80", b"\xff", b"\xc0\x80", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3", b"\xe0\x9f\x80",
           b"\xf0\x80\x80\x80", b"\xfe", b"\xe4\xb8\x2d", b"\xf0\x9f\x41"]
    for b in bad:
        yield b
        yield b"ok " + b + b" go"
        yield b + b
    for _ in range(50):
        yield b"".join(rng.choice(bad) if rng.random() < 0.4 else rng.choice([b"hi", b" ", b"\n", "é".encode(), "中文".encode(), "😀".encode()])
                       for _ in range(rng.randrange(2, 9)))


def make_strings(corpus):
    rng = random.Random(20240607)
    text = [*language_strings(corpus, rng), *code_strings(rng), *odd_strings(rng), *special_strings(rng)]
    strings = [t.encode("utf-8") for t in text] + list(invalid_strings(rng))
    rng.shuffle(strings)
    return list(dict.fromkeys(strings))


# ---- Files
def escape(data):
    out = []
    text = data.decode("utf-8", errors="surrogateescape")
    for c in text:
        if 0xdc80 <= ord(c) <= 0xdcff:
            out.append(f"\\x{ord(c) - 0xdc00:02x}")
        elif c == "\\" or ord(c) < 0x20 or 0x7f <= ord(c) < 0xa0 or c in "\u2028\u2029":
            out.append("".join(f"\\x{b:02x}" for b in c.encode()))
        else:
            out.append(c)
    return "".join(out)


def unescape(line):
    return re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m.group(1), 16)]), line)


def leb128(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7f | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def id_list(ids):
    return leb128(len(ids)) + b"".join(leb128(i) for i in ids)


def write_lines(path, lines):
    path.write_bytes(b"".join(escape(line).encode() + b"\n" for line in lines))


def write_goldens(name, tokenizer, strings):
    texts = [s.decode("utf-8", errors="replace") for s in strings]
    out = b"".join(id_list(tokenizer.encode(t, add_special_tokens=False).ids) for t in texts)
    out += b"".join(id_list(tokenizer.encode(t, add_special_tokens=True).ids) for t in texts[:NUM_WITH_SPECIAL])
    (OUT / f"{name}.ids").write_bytes(out)
    rng = random.Random(7)
    vocabulary = tokenizer.get_vocab_size()
    lists = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts[:60]]
    lists += [[rng.randrange(vocabulary) for _ in range(rng.randrange(1, 24))] for _ in range(60)]
    lists += [[rng.randrange(min(vocabulary, 700)) for _ in range(rng.randrange(1, 24))] for _ in range(60)]
    (OUT / f"{name}.decode").write_bytes(b"".join(id_list(ids) for ids in lists))
    write_lines(OUT / f"{name}.decode.txt", [tokenizer.decode(ids, skip_special_tokens=skip).encode()
                                             for ids in lists for skip in (False, True)])
    print(f"{name}: vocabulary {vocabulary}, {len(out)} bytes of ids")


# ---- Small tokenizers in the shape of each family
def special(*names, normalized=False):
    return [AddedToken(n, special=True, normalized=normalized) for n in names]


def bos_template(bos, id_, eos=None, eos_id=None):
    single = f"{bos} $A" + (f" {eos}" if eos else "")
    tokens = [(bos, id_)] + ([(eos, eos_id)] if eos else [])
    return processors.TemplateProcessing(single=single, pair=f"{single} $B", special_tokens=tokens)


def byte_level(pre, texts, specials, normalizer=None, ignore_merges=False, size=1800):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                     show_progress=False))
    t.add_special_tokens(specials)
    return t


def gpt2(texts):
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), texts, special("<|endoftext|>"))


def llama3(texts):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t = byte_level(pre, texts, special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"), ignore_merges=True)
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                            bos_template("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])
    # A whole word in the vocabulary that no merge makes: what ignore_merges is for.
    data = json.loads(t.to_str())
    data["model"]["vocab"]["Ġwonderfulness"] = len(data["model"]["vocab"])
    return Tokenizer.from_str(json.dumps(data))


def qwen2(texts):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t = byte_level(pre, texts, special("<|endoftext|>", "<|im_start|>", "<|im_end|>"), normalizer=normalizers.NFC())
    t.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return t


def deepseek(texts):
    split = lambda p: pre_tokenizers.Split(Regex(p), "isolated")
    pre = pre_tokenizers.Sequence([split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
                                   pre_tokenizers.Digits(individual_digits=True),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t = byte_level(pre, texts, special("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", normalized=True))
    t.post_processor = bos_template("<｜begin▁of▁sentence｜>", t.token_to_id("<｜begin▁of▁sentence｜>"))
    return t


def sentencepiece_bpe(texts, specials, size=2200):
    """A vocabulary of specials, 256 bytes and pieces; merges learned within words."""
    names = [s.content for s in specials]
    byte_names = [f"<0x{b:02X}>" for b in range(256)]
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=names + byte_names, limit_alphabet=300,
                                                     show_progress=False))
    data = json.loads(t.to_str())
    data["added_tokens"] = []
    data["pre_tokenizer"] = None
    # Pieces that cross a word, as real vocabularies have a few of them.
    for left, right in (("▁", "▁"), ("▁▁", "▁▁"), (",", "▁"), ("▁a", "▁")):
        if left + right not in data["model"]["vocab"] and left in data["model"]["vocab"]:
            data["model"]["vocab"][left + right] = len(data["model"]["vocab"])
            data["model"]["merges"].append([left, right])
    t = Tokenizer.from_str(json.dumps(data))
    t.add_special_tokens(specials)
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = bos_template("<s>", 1) if "<s>" in names else bos_template("<bos>", 2)
    return t


def llama2(texts):
    return sentencepiece_bpe(texts, special("<unk>", "<s>", "</s>"))


def mistral(texts):
    t = sentencepiece_bpe(texts, special("<unk>", "<s>", "</s>", normalized=True))
    t.normalizer = None
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return t


def gemma(texts):
    t = sentencepiece_bpe(texts, special("<pad>", "<eos>", "<bos>", "<unk>"))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_tokens([AddedToken(c, normalized=False) for c in ("\n\n", "<table>", "<b>", "</b>")])
    return t


def unigram(texts):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    t.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    t.train_from_iterator([x[:400] for x in texts], trainers.UnigramTrainer(
        vocab_size=2400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                     special_tokens=[("</s>", t.token_to_id("</s>"))])
    return t


def flags(texts):
    """Every flag of an added token, and the steps that no family above has."""
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated"),
                                               pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Whitespace()])
    t.decoder = decoders.Fuse()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>"], limit_alphabet=250, show_progress=False))
    t.add_tokens([AddedToken("[WORD]", single_word=True, normalized=False), AddedToken("[LEFT]", lstrip=True, normalized=False),
                  AddedToken("[RIGHT]", rstrip=True, normalized=False), AddedToken("[Norm]", normalized=True),
                  AddedToken("user", single_word=True, normalized=True), AddedToken("<mask>", lstrip=True, rstrip=True, special=True)])
    return t


SMALL = {f.__name__: f for f in (gpt2, llama3, qwen2, deepseek, llama2, mistral, gemma, unigram, flags)}


# ---- Real ones
def smollm2(models_dir):
    t = from_gguf(models_dir, "SmolLM2-135M-Instruct.Q4_1.gguf")
    if t:  # Transformers doesn't know the `smollm` pre-tokenizer
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return t


def gemma3(models_dir):
    return from_gguf(models_dir, "gemma-3-270m-q4_k_m.gguf")


def from_gguf(models_dir, name):
    if not (models_dir / name).exists():
        print(f"{name}: not there, its goldens stay")
        return None
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(models_dir, gguf_file=name).backend_tokenizer


def main():
    cache = os.environ.get("KVANT_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvant"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path(cache) / "models")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--only", help="one tokenizer's name")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    if args.corpus:
        write_lines(OUT / "strings.txt", make_strings(args.corpus))
    strings = [unescape(line) for line in (OUT / "strings.txt").read_bytes().split(b"\n")[:-1]]
    print(f"{len(strings)} strings")
    texts = [s.decode("utf-8", errors="ignore") for s in strings]
    for name, make in SMALL.items():
        if args.only not in (None, name):
            continue
        tokenizer = make(texts)
        (OUT / name).mkdir(exist_ok=True)
        (OUT / name / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False,
                                                              separators=(",", ":")), "utf-8")
        write_goldens(name, tokenizer, strings)
    for make in (smollm2, gemma3):
        if args.only in (None, make.__name__) and (tokenizer := make(args.models)):
            write_goldens(make.__name__, tokenizer, strings)


if __name__ == "__main__":
    main()
