#!/usr/bin/env bash
# All tests, in the order of how soon they can tell that something is wrong. What `make test` runs.
#   tools/test.sh          everything but the fuzzers
#   tools/test.sh fuzz N   the fuzzers alone, N seconds split over all targets
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)
say() { printf '\n== %s\n' "$*"; }

run_ctest() { # PRESET [ctest options]
  local preset=$1 dir=build-$1
  shift
  [ "$preset" = release ] && dir=build
  ctest --test-dir "$dir" --output-on-failure -j "$jobs" "$@"
}

build() { # PRESET [targets]; prints what went wrong, else only the last line
  local preset=$1 log=build-$1.log
  shift
  { cmake --preset "$preset" && cmake --build --preset "$preset" "$@"; } >"$log" 2>&1 || { tail -n 60 "$log"; return 1; }
  tail -n 1 "$log"
  rm -f "$log"
}

if [ "${1:-}" = fuzz ]; then
  seconds=${2:-300}
  tools/setup.sh dev
  rm -f build-fuzz/fuzz-targets.txt
  build fuzz --target fuzzers
  mapfile -t targets < <(sort -u build-fuzz/fuzz-targets.txt)
  [ ${#targets[@]} -gt 0 ] || { echo "no fuzz targets"; exit 1; }
  each=$((seconds / ${#targets[@]} + 1))
  for target in "${targets[@]}"; do
    program=$(find build-fuzz -type f -name "$target" -perm -u+x | head -n 1)
    corpus=$(mktemp -d)
    seed=tests/data/fuzz/$target
    say "fuzz $target, $each s"
    "$program" -max_total_time="$each" -rss_limit_mb=4096 -timeout=20 -print_final_stats=1 "$corpus" $([ -d "$seed" ] && echo "$seed") \
      >fuzz.log 2>&1 || { tail -n 40 fuzz.log; exit 1; }
    grep -E 'stat::(number_of_executed_units|peak_rss_mb)' fuzz.log
    rm -rf "$corpus" fuzz.log
  done
  exit 0
fi

tools/setup.sh dev
tools/setup.sh models

say "layers and format"
tools/check_layers.py
git ls-files '*.h' '*.cc' | xargs clang-format --dry-run --Werror

say "release"
build release
run_ctest release

say "address and undefined-behaviour sanitizers"
build asan-ubsan --target tests_fast cache_example
run_ctest asan-ubsan -L fast

say "thread sanitizer"
build tsan --target tests_threads
run_ctest tsan -L threads

say "NEON, under qemu"
build arm64-qemu
# The sweep over every format would take minutes in emulation; attention_test covers attention on NEON.
run_ctest arm64-qemu -L fast -E cache_formats_test
