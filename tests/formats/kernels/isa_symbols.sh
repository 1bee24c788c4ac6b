#!/bin/sh
# usage: isa_symbols.sh NM ARCHIVE
# Every symbol that an object compiled for an instruction set of its own offers to the linker must lie in that set's
# namespace (kvant::<name>). A weak one with a common name, compiled with AVX-512, could be the copy that the linker keeps
# for the whole program, and would crash older CPUs.
set -eu
nm=$1
archive=$2
"$nm" --defined-only --extern-only "$archive" | awk '
  /\.o:$/ { object = $0; sub(/\.cc\.o:$/, "", object); sub(/\.o:$/, "", object); next }
  NF == 3 && object ~ /^(avx|neon)/ {
    seen[object]++
    prefix = "_ZN5kvant" length(object) object
    if (index($3, prefix) != 1) { print object ": " $2 " " $3 " lies outside kvant::" object; bad = 1 }
  }
  END {
    for (object in seen) count++
    if (count == 0) { print "no per-ISA object in the archive"; exit 1 }
    print count " per-ISA objects"
    exit bad
  }'
