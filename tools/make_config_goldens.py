#!/usr/bin/env python3
"""Makes tests/data/configs/expected.json: the cache that every published config beside it needs, layer by layer.

The oracle is the models' own code. For each config that Transformers knows, the model is built on the `meta` device
(shapes without memory, so a model of 600 GB costs a second), fed a prompt that is longer than its smallest window, and
the shapes of what lies in its cache afterwards are written down. Models that Transformers doesn't know are worked out
by hand from other published code: by_hand.json holds those, each with its source. Nothing here reads Kvant's planner.
The same is done for variants.json, changes to some of the files that show what an absent or a null field means; what
they need goes to expected_variants.json under "file:variant".

What a row of expected.json says of its layers (an index may stand in several rows: its caches add up):
  kind      full, sliding, chunked: K and V of every token, of the last `window` ones, of the current chunk's
            latent: one vector per token that is both K and V (v_dim 0); with `window` only the last ones
            compressed: one such vector for every `tokens_per_entry` tokens
            cross: K and V of the encoder's or the image's tokens, constant while text is generated
            ssm, linear, conv: constant state and no tokens
            shared: reads the cache of layer `shares` (-1: the layer before); none: no cache at all
  window    how many tokens a query sees, its own among them; a cache between two steps needs one fewer
  indexer   width of the side cache that chooses tokens: one more vector for every entry, `dim` wide
  recurrent, recurrent_dtype   elements of the recurrent state; "model" is the model's own dtype
  conv      elements of the convolution's state that the next step reads (width - 1 columns), in the model's dtype;
            `conv_stored`: as Transformers keeps it (often `width` columns)
  buffer    elements that the compressor holds back at most until an entry is full (as Transformers keeps them)
The sums beside the rows are for a 16-bit cache: `bytes_per_token` before any window is full, `bytes_per_token_long`
after all are, `state_bytes` of constant states (recurrent states in their own dtype, conv states as the step reads).
`defaults`: fields that the file leaves out, with the value of the configuration's class, where that value counts.

usage: make_config_goldens.py [--only NAME[,NAME]] [--configs tests/data/configs]     (needs torch, transformers)
"""

import argparse
import json
import os
import pathlib
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch
import transformers
from transformers import AutoModel, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.mllama.modeling_mllama import MllamaTextModel
from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

SHORT_PROMPT = 9  # no multiple of any window, chunk or compression rate, so that no count comes out right by chance
LONGEST_PROMPT = 8192 + SHORT_PROMPT  # windows beyond this are only read from the cache's declaration
VISION_TOKENS = 11  # of the cross-attention layers' source
BYTES = 2  # per element of the sums

# Files whose model_type Transformers doesn't know under that name, though it has the architecture.
# The second value names the sub-config that is the decoder, None where the file itself is.
KNOWN_AS = {
    "kimi_k2": ("deepseek_v3", None, "model_type kimi_k2 names architecture DeepseekV3ForCausalLM"),
    "kimi_k3": ("kimi_linear", "text_config", "the decoder is text_config, a kimi_linear"),
    "minimax_m3": ("minimax_m3_vl_text", None, "the text model of Transformers' minimax_m3_vl"),
    "step3p7": ("step3p5", None, "the file is the text config itself, which Transformers nests in a wrapper"),
    "ministral3": ("ministral3", "text_config", "both levels say ministral3; the decoder is text_config"),
}

# What a config lacks or spells its own way before its class can build a model. None of it changes a cache's size.
REPAIRS = {
    "kimi-k3.json": ({"hidden_act": "silu"}, "activation replaced: Transformers has no `situ`"),
    "zamba2-7b.json": (
        {"n_mamba_heads": 112, "mamba_d_state": 64, "mamba_d_conv": 4},
        "state_size, conv_dimension and mamba_headdim under Transformers' names; n_mamba_heads = expand * hidden / 64",
    ),
    "phi-3.5-moe.json": (
        {"rope_scaling": None},
        "RoPE scaling left out: choosing it reads a value, which meta tensors lack",
    ),
}

# Fields that decide a cache; a file that leaves one out gets its class's default.
FIELDS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window"),
    *("kv_lora_rank", "qk_rope_head_dim", "attention_chunk_size", "num_kv_shared_layers", "cross_attention_layers"),
    *("mamba_n_heads", "mamba_n_groups", "mamba_d_head", "mamba_d_state", "mamba_d_conv", "mamba_expand"),
    *(
        "linear_conv_kernel_dim",
        "conv_L_cache",
        "conv1d_width",
        "attn_layer_period",
        "attn_layer_offset",
        "multi_query",
    ),
)

# A field that a file leaves out isn't its class's default if it follows from one of these.
FOLLOWS_FROM = {
    "hidden_size": ("n_embed",),
    "head_dim": ("kv_lora_rank", "kv_channels"),
    "num_key_value_heads": ("attn_config", "multi_query"),
    "linear_conv_kernel_dim": ("linear_attn_config",),
}

KEYS = ("window", "tokens_per_entry", "indexer", "recurrent", "recurrent_dtype", "conv", "conv_stored", "buffer")


def decoder_config(name, raw):
    """The decoder's configuration, its part of the file and notes; None where Transformers has no such model."""
    notes = []
    raw = dict(raw)
    model_type = raw.get("model_type")
    if model_type in KNOWN_AS:
        model_type, inner, why = KNOWN_AS[model_type]
        raw = dict(raw[inner]) if inner else raw
        notes.append(why)
    if name in REPAIRS:
        changes, why = REPAIRS[name]
        raw.update(changes)
        notes.append(why)
    if model_type == "step3p5":
        raw.pop("model_type")
        return Step3p7TextModel.config_class(**raw), raw, notes
    if model_type not in CONFIG_MAPPING:
        return None, raw, notes
    config = CONFIG_MAPPING[model_type].from_dict(dict(raw))
    if model_type != "t5":
        config = config.get_text_config(decoder=True)
    return config, raw.get("text_config", raw), notes


def defaults_used(config, raw):
    """What counts for the cache and isn't in the file; values that follow from others are left out."""
    aliases = {own: spelled for spelled, own in config.attribute_map.items()} | dict(config.attribute_map)
    spelled = set(raw) | {aliases[field] for field in raw if field in aliases}
    values = config.to_dict()  # not attributes: where layers differ, those refuse to name one value
    values = {field: values.get(field, values.get(aliases.get(field))) for field in FIELDS}
    heads = values["num_attention_heads"]
    derived = {"num_key_value_heads": heads, "head_dim": values["hidden_size"] // heads if heads else None}
    used = {}
    for field, value in values.items():
        known = {field, *FOLLOWS_FROM.get(field, ())} & spelled
        if not known and value is not None and value != derived.get(field):
            used[field] = value
    return used


def build(config):
    """The bare decoder on the meta device, its mixtures of experts turned into identities (routing reads values)."""
    classes = {"mllama_text_model": MllamaTextModel, "step3p5": Step3p7TextModel}
    with torch.device("meta"):
        if config.model_type in classes:
            config._attn_implementation = "eager"
            model = classes[config.model_type](config).to(torch.bfloat16)
        else:
            model = AutoModel.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.forward = lambda hidden, *args, **kwargs: hidden
    return model.eval()


def prompt_length(cache):
    """Longer than the smallest window, so that it is seen to bind."""
    windows = [getattr(layer, "sliding_window", None) for layer in cache.layers]
    windows = [w for w in windows if w and w + SHORT_PROMPT <= LONGEST_PROMPT]
    return min(windows) + SHORT_PROMPT if windows else SHORT_PROMPT


def run(config, model):
    """Feeds a prompt. Returns (its length, decoder's cache layers, cross-attention cache layers)."""
    with torch.device("meta"), torch.no_grad():
        if config.model_type == "t5":
            ids = torch.zeros(1, SHORT_PROMPT, dtype=torch.long)
            source = torch.zeros(1, VISION_TOKENS, dtype=torch.long)
            out = model(input_ids=source, decoder_input_ids=ids, use_cache=True)
            cache = out.past_key_values
            return SHORT_PROMPT, cache.self_attention_cache.layers, cache.cross_attention_cache.layers
        cache = DynamicCache(config=config)
        tokens = prompt_length(cache)
        ids = torch.zeros(1, tokens, dtype=torch.long)
        extra = {}
        if config.model_type == "mllama_text_model":
            extra["cross_attention_states"] = torch.zeros(1, VISION_TOKENS, config.hidden_size, dtype=torch.bfloat16)
        model(input_ids=ids, use_cache=True, cache=cache, **extra)
        return tokens, cache.layers, []


def require(claim, what):
    if not claim:
        raise AssertionError(what)


def states(layer, width):
    """Constant states of a linear-attention, state-space or convolution layer."""
    conv = [t for t in layer.conv_states.values() if t is not None]
    recurrent = [t for t in layer.recurrent_states.values() if t is not None]
    row = {}
    if recurrent:
        row["recurrent"] = sum(t.numel() for t in recurrent)
        row["recurrent_dtype"] = "float32" if recurrent[0].dtype == torch.float32 else "model"
    if conv:
        require(all(t.dtype == torch.bfloat16 for t in conv), "conv state in another dtype than the model's")
        row["conv_stored"] = sum(t.numel() for t in conv)
        row["conv"] = sum(t.numel() // t.shape[-1] * (width - 1) for t in conv)
    return row


def state_kind(config, has_recurrent):
    if not has_recurrent:
        return "conv"
    ssm = ("mamba", "mamba2", "jamba", "granitemoehybrid", "nemotron_h", "zamba2")
    return "ssm" if config.model_type in ssm else "linear"


def attention_row(config, layer, index, tokens):
    """The row of a layer that holds K and V."""
    _, heads, held, k_dim = layer.keys.shape
    v_dim = layer.values.shape[-1]
    row = {"kv_heads": heads, "k_dim": k_dim, "v_dim": v_dim}
    cross = getattr(config, "cross_attention_layers", None) or []
    window = getattr(layer, "sliding_window", None)
    if index in cross:
        require(held == VISION_TOKENS, "a cross-attention layer holds the source's tokens")
        return row | {"kind": "cross"}
    require(held == (min(tokens, window - 1) if window else tokens), f"layer {index} holds {held} of {tokens} tokens")
    require(layer.keys.dtype == torch.bfloat16, "a cache in another dtype than the model's")
    if window:
        kinds = getattr(config, "layer_types", None)
        row |= {"kind": "chunked" if kinds and kinds[index] == "chunked_attention" else "sliding", "window": window}
    else:
        row["kind"] = "full"
    if getattr(config, "kv_lora_rank", None) and heads == 1:
        # Latent attention: the "key" is what K and V are both made from, the "value" the rotated part of K.
        require((k_dim, v_dim) == (config.kv_lora_rank, config.qk_rope_head_dim), "latent and rotary part")
        row |= {"kind": "latent", "k_dim": k_dim + v_dim, "v_dim": 0}
    side = getattr(layer, "indexer_keys", None)
    side = side if side is not None else getattr(layer, "idx_keys", None)
    if side is not None:
        require(side.numel() == tokens * side.shape[-1], "one indexer key per token")
        row["indexer"] = {"dim": side.shape[-1]}
    return row


def compressed_rows(config, layer, tokens):
    """DeepSeek-V4: a window of plain entries, and one compressed entry for every few tokens before it."""
    require(layer.keys is layer.values and layer.keys.shape[1] == 1, "one vector is K and V")
    width = layer.keys.shape[-1]
    latent = {"kind": "latent", "kv_heads": 1, "k_dim": width, "v_dim": 0}
    rows = [latent | {"window": layer.sliding_window}]
    if not hasattr(layer, "compressed_kv"):
        return rows
    rate = layer.compress_rate
    entries = {name: kv for name, kv in layer.compressed_kv.items()}
    for name, kv in entries.items():
        require(kv.shape[1] == tokens // rate, f"{name}: {kv.shape[1]} entries of {tokens} tokens")
    row = latent | {"kind": "compressed", "k_dim": entries["compressor"].shape[-1], "tokens_per_entry": rate}
    if "indexer" in entries:
        row["indexer"] = {"dim": entries["indexer"].shape[-1]}
    held = sum(2 * (rate - 1) * layer.buffer_kv[name].shape[-1] for name in entries)
    overlap = getattr(layer, "overlap_kv", {})
    row["buffer"] = held + sum(2 * rate * kv.shape[-1] for kv in overlap.values())
    return rows + [row]


def rg_lru_rows(config, model, rows):
    """RecurrentGemma keeps its states in the modules, not in the cache."""
    for index, block in enumerate(model.layers):
        inner = block.temporal_block
        if not hasattr(inner, "rg_lru"):
            continue
        state, conv = inner.rg_lru.recurrent_states, inner.conv1d_state
        require(state.dtype == torch.float32 and conv.shape[-1] == config.conv1d_width - 1, "RG-LRU's states")
        row = {"kind": "linear", "recurrent": state.numel(), "recurrent_dtype": "float32"}
        rows.append((index, row | {"conv": conv.numel(), "conv_stored": conv.numel()}))


def conv_width(config):
    for field in ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache", "conv1d_width"):
        if getattr(config, field, None):
            return getattr(config, field)
    return None


def sharing_source(config, index):
    """The layer whose cache a sharing layer reads: the last that owns one and attends the same way."""
    modes = config.kv_sharing_modes
    owners = [
        i for i, mode in enumerate(modes) if mode != "reuse" and config.layer_types[i] == config.layer_types[index]
    ]
    require(modes[owners[-1]] == "store", "the shared layer stores for others")
    return owners[-1]


def rows_of(config, model, tokens, layers, cross):
    """(layer index, row) of everything that is cached."""
    rows = []
    modes = getattr(config, "kv_sharing_modes", None) or []
    for index, layer in enumerate(layers):
        if hasattr(layer, "conv_states"):
            state = states(layer, conv_width(config))
            if state:
                rows.append((index, {"kind": state_kind(config, "recurrent" in state)} | state))
        keys = getattr(layer, "keys", None)
        if config.model_type == "deepseek_v4":
            # Its window-only layers use the plain class, which can't tell that K and V are one tensor.
            layer.values = layer.keys
            rows += [(index, row) for row in compressed_rows(config, layer, tokens)]
        elif keys is not None:
            rows.append((index, attention_row(config, layer, index, tokens)))
        elif modes and modes[index] == "reuse":
            rows.append((index, {"kind": "shared", "shares": sharing_source(config, index)}))
        elif not hasattr(layer, "conv_states"):
            rows.append((index, {"kind": "none"}))
    for index, layer in enumerate(cross):
        require(layer.keys.shape[2] == VISION_TOKENS, "a cross-attention layer holds the source's tokens")
        _, heads, _, width = layer.keys.shape
        row = {"kind": "cross", "kv_heads": heads, "k_dim": width, "v_dim": layer.values.shape[-1]}
        rows.append((index, row))
    if config.model_type == "recurrent_gemma":
        rows = [(i, row) for i, row in rows if row["kind"] != "none"]
        rg_lru_rows(config, model, rows)
    count = getattr(config, "num_decoder_layers", config.num_hidden_layers)
    require({i for i, _ in rows} == set(range(count)), "every layer is accounted for")
    return rows


def group(rows):
    """Layers with equal rows together, in the order of their first layer."""
    groups = {}
    for index, row in sorted(rows, key=lambda entry: entry[0]):
        order = ("kind", "kv_heads", "k_dim", "v_dim", *KEYS, "shares")
        row = {key: row[key] for key in order if key in row}
        groups.setdefault(json.dumps(row), []).append(index)
    return [{"layers": indices, **json.loads(row)} for row, indices in groups.items()]


def expand(text):
    """'0-6:2,9' as [0, 2, 4, 6, 9]."""
    indices = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        indices += range(int(first), int(last or first) + 1, int(step or 1))
    return indices


def sums(groups):
    """Bytes of a 16-bit cache: one more token early and late, and the constant states of one sequence."""
    early = late = state = 0
    for row in groups:
        count = len(row["layers"])
        elements = row.get("kv_heads", 0) * (row.get("k_dim", 0) + row.get("v_dim", 0))
        elements += row.get("indexer", {}).get("dim", 0)
        per_token = BYTES * count * elements // row.get("tokens_per_entry", 1)
        early += 0 if row["kind"] == "cross" else per_token
        late += 0 if row["kind"] == "cross" or "window" in row else per_token
        width = 4 if row.get("recurrent_dtype") == "float32" else BYTES
        state += count * (row.get("recurrent", 0) * width + row.get("conv", 0) * BYTES)
    return {"bytes_per_token": early, "bytes_per_token_long": late, "state_bytes": state}


def latent_note(config):
    heads, k = config.num_attention_heads, config.qk_nope_head_dim + config.qk_rope_head_dim
    return (
        f"cached_by transformers, vllm, sglang, deepseek: the latent; expanded it would be {heads} heads"
        f" of K {k} and V {config.v_head_dim}"
    )


def from_transformers(name, raw, override):
    config, part, notes = decoder_config(name, raw)
    if config is None:
        return None
    model = build(config)
    tokens, layers, cross = run(config, model)
    rows = rows_of(config, model, tokens, layers, cross)
    oracle = f"transformers {transformers.__version__} meta forward: {type(model).__name__}, {tokens} tokens"
    if override:
        oracle += "; corrected by hand"
        for _, row in rows:
            if row["kind"] == override.get("only", row["kind"]):
                row |= override["override"]
        notes.append(override["why"])
    if getattr(config, "kv_lora_rank", None):
        notes.append(latent_note(config))
    return {
        "architecture": (raw.get("architectures") or [raw.get("model_type")])[0],
        "oracle": oracle,
        "layers": group(rows),
        "defaults": defaults_used(config, part),
        "notes": notes,
    }


def from_hand(raw, entry):
    rows = [
        (i, {k: v for k, v in row.items() if k != "layers"}) for row in entry["layers"] for i in expand(row["layers"])
    ]
    return {
        "architecture": (raw.get("architectures") or [raw.get("model_type")])[0],
        "oracle": "by hand: " + entry["source"],
        "layers": group(rows),
        "defaults": {},
        "notes": entry["facts"] + entry.get("notes", []),
    }


def check_published(expected, published):
    for name, claim in published.items():
        if name not in expected:
            continue
        per_token = expected[name]["bytes_per_token_long"]
        want = claim.get("bytes_per_token", claim.get("total_bytes", 0) // claim.get("tokens", 1))
        require(per_token == want, f"{name}: {per_token} bytes per token, published {want} ({claim['source']})")


def text_of(expected):
    """JSON with a line per group of layers: small, and a change shows where it is."""
    files = []
    for name, model in expected.items():
        layers = ",\n".join("   " + json.dumps(row) for row in model["layers"])
        fields = [f'  "{key}": {json.dumps(model[key])}' for key in model if key != "layers"]
        fields.insert(2, f'  "layers": [\n{layers}]')
        files.append(f' "{name}": {{\n' + ",\n".join(fields) + "}")
    return "{\n" + ",\n".join(files) + "\n}\n"


def patched(raw, operations):
    """RFC 6902's `add` to and `remove` from objects."""
    raw = json.loads(json.dumps(raw))
    for operation in operations:
        *parents, field = operation["path"].strip("/").split("/")
        place = raw
        for parent in parents:
            place = place[parent]
        if operation["op"] == "add":
            place[field] = operation["value"]
        else:
            del place[field]
    return raw


def expectation(name, raw, by_hand, changed):
    """What one config, as published or changed, needs."""
    entry = by_hand["models"].get(name)
    try:
        require(not (entry and changed), "a variant of a model worked out by hand")
        override = None if changed else by_hand["observed_differs"].get(name)
        model = from_hand(raw, entry) if entry else from_transformers(name, raw, override)
        require(model, "neither Transformers nor by_hand.json knows it")
    except Exception as error:
        raise SystemExit(f"{name}: {error}") from error
    model["notes"] += [] if changed else by_hand["notes"].get(name, [])
    return model | sums(model["layers"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--only", default="", help="file names without .json, separated by commas; prints, writes nothing"
    )
    parser.add_argument("--configs", type=pathlib.Path, default=pathlib.Path("tests/data/configs"))
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    torch.distributions.Distribution.set_default_validate_args(False)  # Gemma 3n builds one; validation reads values

    by_hand = json.loads((args.configs / "by_hand.json").read_text())
    made = {"by_hand.json", "expected.json", "variants.json", "expected_variants.json"}
    wanted = {name + ".json" for name in args.only.split(",") if name}
    files = [path for path in sorted(args.configs.glob("*.json")) if path.name not in made]
    raws = {path.name: json.loads(path.read_text()) for path in files if not wanted or path.name in wanted}
    expected = {name: expectation(name, raw, by_hand, changed=False) for name, raw in raws.items()}
    check_published(expected, by_hand["published"])
    if wanted:
        print(text_of(expected), end="")
    else:
        (args.configs / "expected.json").write_text(text_of(expected))
        variants = {}
        for variant in json.loads((args.configs / "variants.json").read_text())["variants"]:
            base = variant["base"]
            raw = patched(raws[base], variant["patch"])
            name = f"{base.removesuffix('.json')}:{variant['name']}"
            variants[name] = expectation(base, raw, by_hand, changed=True)
        (args.configs / "expected_variants.json").write_text(text_of(variants))
        print(
            f"{len(expected)} configs, {sum('meta forward' in m['oracle'] for m in expected.values())} by Transformers"
        )


if __name__ == "__main__":
    main()
