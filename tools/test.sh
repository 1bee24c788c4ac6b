#!/usr/bin/env bash
# All tests, in the order of how soon they can tell that something is wrong. What `make test` runs.
#   tools/test.sh          everything but fuzzing
#   tools/test.sh fuzz N   the fuzzers alone, N seconds split over all targets
# A line for each stage: what it is, how long it took, how much of the processors, and what it ran; the rest of its
# output goes to build-test/. The first stage that fails ends the run, and says how to repeat it.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)
logs=build-test
rm -rf "$logs"
mkdir -p "$logs"
stages=0 programs=0 cases=0 skipped=0

read_cpu() { # sets cpu: seconds of user and system time of all commands so far
  times >"$logs/times" # in this shell: a subshell has times of its own
  cpu=$(awk -F'[ms ]+' 'NR == 2 { printf "%d", 60 * ($1 + $3) + $2 + $4 }' "$logs/times")
}

# stage NAME COMMAND [FUNCTION]: FUNCTION gets the log's name and says what ran.
stage() {
  local name=$1 command=$2 report=${3:-true} log=$logs/${1//: /-}.log start=$SECONDS before
  read_cpu && before=$cpu
  printf '%-24s' "$name"
  if ! GTEST_OUTPUT="xml:$PWD/$log.xml/" bash -o pipefail -c "$command" >"$log" 2>&1; then
    printf 'failed after %d s\n\n' $((SECONDS - start))
    { grep -E '^\[  FAILED  \]|^FAILED: |error: |(ERROR|WARNING): [A-Za-z]+Sanitizer' "$log" || true; } | sort -u | head -n 20
    printf '\n... the end of %s:\n' "$log"
    tail -n 40 "$log"
    printf '\n%s failed. What failed stands above; all of it is in %s. To repeat it:\n  %s\n' "$name" "$log" "$command"
    exit 1
  fi
  read_cpu
  stages=$((stages + 1))
  printf '%5d s %6d s CPU  %s\n' $((SECONDS - start)) $((cpu - before)) "$("$report" "$log")"
}

build() { # PRESET [cmake --build options]
  local preset=$1
  shift
  stage "$preset: build" "cmake --preset $preset && cmake --build --preset $preset $*"
}

run_ctest() { # PRESET [ctest options]
  local preset=$1 folder=build-$1
  shift
  [ "$preset" = release ] && folder=build
  stage "$preset: test" "ctest --test-dir $folder --output-on-failure -j $jobs $*" counted
  local counts
  read -r -a counts <"$logs/counts"
  programs=$((programs + counts[0])) cases=$((cases + counts[1])) skipped=$((skipped + counts[2]))
}

counted() { # LOG of ctest; leaves the numbers in a file
  python3 - "$1" "$logs" <<'PY'
import collections, pathlib, re, sys, xml.etree.ElementTree as tree

log, logs = sys.argv[1:]
tests = re.findall(r"Test +#\d+: (\S+)", pathlib.Path(log).read_text(errors="replace"))
programs = len({test.split("/")[0] for test in tests})  # NAME/0 and NAME/1 are shards of one
cases = [c for f in sorted(pathlib.Path(log + ".xml").glob("*.xml")) for c in tree.parse(f).iter("testcase")]
skipped = [c for c in cases if c.find("skipped") is not None]
reasons = collections.Counter(
    (f"{c.get('classname')}.{c.get('name')}".split("/")[-2 if c.get("value_param") else -1],
     (c.find("skipped").get("message") or "").strip().split("\n")[-1]) for c in skipped)
with open(logs + "/skipped", "a") as out:
    for (name, reason), count in reasons.items():
        out.write(f"  {pathlib.Path(log).stem}: {name}: {reason}" + (f" ({count} times)\n" if count > 1 else "\n"))
pathlib.Path(logs + "/counts").write_text(f"{programs} {len(cases)} {len(skipped)}\n")
print(f"{programs} programs, {len(cases)} cases, {len(skipped)} skipped")
PY
}

compared() { # LOG of the instruction counts: fewer are worth a line, so that what is kept stays tight
  awk '/ instructions, / { n++ } /fewer/ { less++ } END { printf "%d kernels", n
    if (less) printf ", %d of fewer instructions than kept (tools/check_instruction_counts.py --update)", less
    print "" }' "$1"
}

fuzzed() { # LOG of a fuzzer
  awk '/^stat::number_of_executed_units/ { n = $2 } /^stat::peak_rss_mb/ { mb = $2 } / cov: / { c = $0 }
       END { sub(/.* cov: /, "", c); sub(/ .*/, "", c); print n " inputs, " c " edges, " mb " MB" }' "$1"
}

finish() {
  [ -s "$logs/skipped" ] && printf '\nskipped:\n%s\n' "$(cat "$logs/skipped")"
  read_cpu
  printf '\npassed: %d stages in %d s, %d s CPU' "$stages" "$SECONDS" "$cpu"
  [ "$programs" -gt 0 ] && printf '; %d programs, %d cases of them passed, %d skipped' "$programs" $((cases - skipped)) "$skipped"
  printf '\n'
  exit 0
}

if [ "${1:-}" = fuzz ]; then
  stage "set-up" "tools/setup.sh dev"
  build fuzz --target fuzzers
  mapfile -t targets <build-asan-ubsan/fuzz-targets.txt
  each=$((${2:-300} / ${#targets[@]}))
  for program in "${targets[@]}"; do
    name=$(basename "$program")
    corpus=build-asan-ubsan/corpus/$name # grows from run to run
    mkdir -p "$corpus"
    stage "$name" "$program -max_total_time=$each -rss_limit_mb=4096 -timeout=25 -print_final_stats=1 \
      -artifact_prefix=$logs/$name- $corpus tests/data/fuzz/$name" fuzzed
  done
  finish
fi

stage "set-up" "tools/setup.sh dev && tools/setup.sh models"
stage "layers" "tools/check_layers.py"
stage "format" "git ls-files '*.h' '*.cc' | xargs -n 64 -P $jobs clang-format --dry-run --Werror"
build release
stage "models.md" "tools/make_models_doc.py --check"
stage "instruction counts" "tools/check_instruction_counts.py" compared
run_ctest release
build asan-ubsan --target tests_fast
run_ctest asan-ubsan -L fast
build tsan --target tests_threads
run_ctest tsan -L threads
build arm64-qemu --target tests_fast
run_ctest arm64-qemu -L fast
finish
