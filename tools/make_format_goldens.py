#!/usr/bin/env python3
"""Makes tests/data/formats/: what formats must give, computed by code that isn't Kvant's.

  make_format_goldens.py OUT_DIR

- fp8_codes.txt       ml_dtypes: the value of all 256 codes of E4M3 and E5M2, and the codes of inputs around ties,
                      overflow and subnormals (saturated at the largest finite value, as a cache must).
- fp4_codes.txt       ml_dtypes: the same for E2M1, and the value of all 256 codes of E8M0.
- block_floats.txt    ml_dtypes and numpy: tokens 6 to 11 of tensor.txt in NVFP4 (tensor scale 1), MXFP4 and MXFP8.
- kvarn.txt           numpy, by the paper's formulas in double: tokens 6 to 11 of tensor.txt in KVarN, still rotated.
- tensor.txt          a seeded [64, 128] tensor, and
  quanto*.txt, hqq*.txt what Transformers' QuantizedCache keeps of it with either back end, in groups of 64 channels of a
                      token, decoded: by optimum-quanto 0.2.7 and hqq 0.2.8 themselves (pip install --no-deps).
- gauss_sqnr.txt      signal-to-noise ratio of uniform grids on Gaussian rows by plain numpy, from which the bands in
                      src/formats/uniform_int.cc are taken.
"""
import sys
from pathlib import Path

import numpy as np


def gauss_sqnr(rng):
    """SQNR in dB per bits, kind and row length: scale and zero kept in binary16, as Kvant stores them."""
    half = lambda a: np.float32(np.float16(a))
    lines = ["# bits kind row_length dB"]
    for n in (16, 32, 64, 128, 256):
        x = rng.standard_normal((400_000 // n * 4, n)).astype(np.float32)
        low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
        for bits in (8, 6, 5, 4, 3, 2, 1):
            results = {}
            if bits > 1:  # a symmetric grid of one bit has no level but zero
                top = 2 ** (bits - 1) - 1
                s = half(np.abs(x).max(1, keepdims=True) / top)
                results["sym"] = np.clip(np.rint(x / s), -top, top) * s
            top = 2**bits - 1
            s, z = half((high - low) / top), half(low)
            results["z"] = np.clip(np.rint((x - z) / s), 0, top) * s + z
            best, best_err = results["z"], ((x - results["z"]) ** 2).sum(1)
            for _ in range(6):  # codes and their least-squares line in turn
                c = np.clip(np.rint((x - z) / s), 0, top)
                cm, xm = c.mean(1, keepdims=True), x.mean(1, keepdims=True)
                s = half(((c - cm) * (x - xm)).sum(1, keepdims=True) / ((c - cm) ** 2).sum(1, keepdims=True))
                z = half(xm - s * cm)
                y = np.clip(np.rint((x - z) / s), 0, top) * s + z
                err = ((x - y) ** 2).sum(1)
                best = np.where((err < best_err)[:, None], y, best)
                best_err = np.minimum(err, best_err)
            results["lsq"] = best
            for kind, y in results.items():
                db = 10 * np.log10((x.astype(np.float64) ** 2).sum() / ((x - y).astype(np.float64) ** 2).sum())
                lines.append(f"{bits} {kind} {n} {db:.2f}")
    return lines


def nf4_sqnr(rng):
    """The same for NF4: 16 levels at normal quantiles, made here by the recipe of the QLoRA paper's appendix E."""
    from statistics import NormalDist

    inv, edge = NormalDist().inv_cdf, 0.9677083
    positive = [inv(p) for p in np.linspace(edge, 0.5, 9)[:-1]]
    negative = [-inv(p) for p in np.linspace(edge, 0.5, 8)[:-1]]
    levels = np.float32(sorted(positive + [0.0] + negative)) / np.float32(max(positive))
    lines = ["# levels " + " ".join(f"{v:.4f}" for v in levels)]
    for n in (32, 64, 128, 256):
        x = rng.standard_normal((400_000 // n, n)).astype(np.float32)
        s = np.float32(np.float16(np.abs(x).max(1, keepdims=True)))
        y = levels[np.abs((x / s)[..., None] - levels).argmin(-1)] * s
        lines.append(f"4 nf4 {n} {10 * np.log10((x**2).sum() / ((x - y) ** 2).sum()):.2f}")
    return lines


def tensor(rng):
    """64 rows of 128: Gaussian, with a channel offset, a token scale and one constant row, as keys have them."""
    x = rng.standard_normal((64, 128)).astype(np.float32)
    x[:, 5] += 8
    x[:, 77] -= 20
    x *= np.exp(0.5 * rng.standard_normal((64, 1))).astype(np.float32)
    x[9] = 0.25
    return x.astype(np.float16).astype(np.float32)  # short decimals, exact in every reader


def rows_text(x):
    return "\n".join(" ".join(f"{v:.9g}" for v in row) for row in x)


def quanto_decoded(x, bits, group):
    """What QuantoQuantizedCache keeps: MaxOptimizer and WeightQBits groups along the channels of a token."""
    import torch
    from optimum.quanto import MaxOptimizer, qint2, qint4, quantize_weight

    qtype = {2: qint2, 4: qint4}[bits]
    t = torch.from_numpy(x)
    scale, shift = MaxOptimizer()(t, qtype, axis=0, group_size=group)
    return quantize_weight(t, qtype=qtype, axis=0, scale=scale, shift=shift, group_size=group).dequantize().numpy()


def hqq_decoded(x, bits, group):
    """What HQQQuantizedCache keeps (axis 1), one group at a time: the library stops its rounds by the mean error of
    whatever tensor it is given, and a cache's group can't know its neighbours."""
    import torch
    from hqq.core.quantize import Quantizer

    out = []
    for row in x.reshape(-1, group):
        q, meta = Quantizer.quantize(torch.from_numpy(row[None]), axis=1, device="cpu", compute_dtype=torch.float32,
                                     nbits=bits, group_size=group, optimize=True, bitpack=False)
        out.append(((q.float() - meta["zero"]) * meta["scale"]).numpy().reshape(-1))
    return np.concatenate(out).reshape(x.shape)


def fp8_lines():
    import ml_dtypes

    lines = ["# value type code: all 256 values; encode type input_bits code: float32 inputs and what they become"]
    for name, dtype, largest in (("e4m3", ml_dtypes.float8_e4m3fn, 448.0), ("e5m2", ml_dtypes.float8_e5m2, 57344.0)):
        values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
        lines += [f"value {name} {c} {v.view(np.uint32):08x}" for c, v in enumerate(values)]
        finite = np.sort(values[np.isfinite(values) & (values >= 0)])
        middles = (finite[1:] + finite[:-1]) / 2
        inputs = np.concatenate([finite, middles, np.nextafter(middles, np.float32(0)),
                                 np.nextafter(middles, np.float32(np.inf)),
                                 np.float32([448, 449, 464, 465, 57344, 57345, 61439, 61440, 1e9, 3.4e38, np.inf,
                                             1e-10, 1e-40])])
        inputs = np.concatenate([inputs, -inputs]).astype(np.float32)
        codes = np.clip(inputs, -largest, largest).astype(dtype).view(np.uint8)
        lines += [f"encode {name} {i.view(np.uint32):08x} {c}" for i, c in zip(inputs, codes)]
    return lines


def fp4_lines():
    import ml_dtypes

    e2m1 = ml_dtypes.float4_e2m1fn
    lines = ["# value type code bits; encode type input_bits code"]
    values = np.arange(16, dtype=np.uint8).view(e2m1).astype(np.float32)
    lines += [f"value e2m1 {c} {v.view(np.uint32):08x}" for c, v in enumerate(values)]
    scales = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    lines += [f"value e8m0 {c} {v.view(np.uint32):08x}" for c, v in enumerate(scales)]
    finite = np.sort(values[:8])
    middles = (finite[1:] + finite[:-1]) / 2
    inputs = np.concatenate([finite, middles, np.nextafter(middles, np.float32(0)),
                             np.nextafter(middles, np.float32(np.inf)), np.linspace(0, 7, 141),
                             np.float32([1e9, 3.4e38, 1e-10, 1e-40])]).astype(np.float32)
    inputs = np.concatenate([inputs, -inputs])
    codes = np.clip(inputs, -6, 6).astype(e2m1).view(np.uint8)
    return lines + [f"encode e2m1 {i.view(np.uint32):08x} {c}" for i, c in zip(inputs, codes)]


def block_decoded(x, name):
    """Rows of x in a block format: scale of a block, elements rounded and saturated by ml_dtypes, decoded."""
    import ml_dtypes as ml

    element, largest, emax, block = {"nvfp4": (ml.float4_e2m1fn, 6, None, 16), "mxfp4": (ml.float4_e2m1fn, 6, 2, 32),
                                     "mxfp8_e4m3": (ml.float8_e4m3fn, 448, 8, 32),
                                     "mxfp8_e5m2": (ml.float8_e5m2, 57344, 15, 32)}[name]
    b = x.reshape(-1, block)
    amax = np.abs(b).max(1, keepdims=True)
    if emax is None:
        scale = np.clip(amax / np.float32(6), 2.0**-9, 448).astype(ml.float8_e4m3fn).astype(np.float32)
        scale[amax == 0] = 1
    else:
        exponent = np.frexp(np.where(amax > 0, amax, 2.0**-127))[1] - 1 - emax
        scale = np.ldexp(np.float32(1), np.maximum(exponent, -127)).astype(np.float32)
        scale = scale.astype(ml.float8_e8m0fnu).astype(np.float32)
    codes = np.clip(b / scale, -largest, largest).astype(element).astype(np.float32)
    return (codes * scale).reshape(x.shape)


BLOCK_FORMATS = ("nvfp4", "mxfp4", "mxfp8_e4m3", "mxfp8_e5m2")


def block_lines(x):
    return ["# format token values"] + [f"{name} {t} " + " ".join(f"{v:.9g}" for v in row) for name in BLOCK_FORMATS
                                        for t, row in enumerate(block_decoded(x, name))]


def block_sqnr(rng):
    x = rng.standard_normal((20_000, 128)).astype(np.float32)
    lines = ["# block floats"]
    for name in BLOCK_FORMATS:
        y = block_decoded(x, name)
        lines.append(f"{name} {10 * np.log10((x.astype(np.float64)**2).sum() / ((x - y).astype(np.float64)**2).sum()):.2f}")
    return lines


def hadamard(x):
    """Rows turned by Sylvester's orthonormal matrix."""
    h = np.ones((1, 1))
    while len(h) < x.shape[1]:
        h = np.block([[h, h], [h, -h]])
    return x.astype(np.float64) @ h / np.sqrt(len(h))


def kvarn_decoded(x, bits, side):
    """A tile by KVarN's formulas: Sinkhorn in logarithms, then min/max rows; metadata in binary16."""
    rotated = hadamard(x)
    tile = rotated.T if side == "K" else rotated  # rows: what gets a scale
    lc, lr = np.zeros((1, tile.shape[1])), np.zeros((tile.shape[0], 1))
    deviation = lambda a, axis: np.clip(a.std(axis, ddof=1, keepdims=True), 1e-3, 1e3)
    best = np.inf
    for _ in range(8):
        cur = tile / np.exp(lc) / np.exp(lr)
        of_cols, of_rows = deviation(cur, 0), deviation(cur, 1)
        imbalance = of_cols.max() / of_cols.min() + of_rows.max() / of_rows.min()
        if imbalance <= best:
            best, kept = imbalance, (lc, lr)
        lc = np.clip(lc + np.log(of_cols), -0.3, 10)
        lr = np.clip(lr + np.log(deviation(tile / np.exp(lc) / np.exp(lr), 1)), -0.3, 10)
    lc, lr = kept
    cur = tile / np.exp(lc) / np.exp(lr)
    low, high = cur.min(1, keepdims=True), cur.max(1, keepdims=True)
    step = np.maximum((high - low) / (2**bits - 1), 1e-10)
    codes = np.rint((cur - low) / step)
    half = lambda a: np.float16(a).astype(np.float64)
    out = (codes * half(np.exp(lr) * step) + half(np.exp(lr) * low)) * half(np.exp(lc))
    return out.T if side == "K" else out


def kvarn_lines(x):
    """K of x; V of rows whose channels differ in size once they are rotated."""
    sides = {"K": x, "V": hadamard(x * 2.0 ** (np.arange(x.shape[1]) % 5)).astype(np.float32)}
    return ["# side bits token values"] + [f"{side} {bits} {t} " + " ".join(f"{v:.6g}" for v in row)
                                           for side, rows in sides.items() for bits in (4, 3, 2)
                                           for t, row in enumerate(kvarn_decoded(rows, bits, side)[6:12])]


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20260101)
    (out / "fp8_codes.txt").write_text("\n".join(fp8_lines()) + "\n")
    (out / "fp4_codes.txt").write_text("\n".join(fp4_lines()) + "\n")
    x = tensor(np.random.default_rng(20260102))
    (out / "block_floats.txt").write_text("\n".join(block_lines(x[6:12])) + "\n")
    (out / "kvarn.txt").write_text("\n".join(kvarn_lines(x)) + "\n")
    (out / "tensor.txt").write_text(rows_text(x) + "\n")
    for bits in (4, 2):
        (out / f"quanto{bits}_g64.txt").write_text(rows_text(quanto_decoded(x, bits, 64)) + "\n")
        (out / f"hqq{bits}_g64.txt").write_text(rows_text(hqq_decoded(x, bits, 64)) + "\n")
    blocks = block_sqnr(np.random.default_rng(20260103))
    (out / "gauss_sqnr.txt").write_text("\n".join(gauss_sqnr(rng) + nf4_sqnr(rng) + blocks) + "\n")


if __name__ == "__main__":
    main()
