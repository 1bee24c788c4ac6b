#!/usr/bin/env bash
# The main job on a real model: what every cache format costs on SmolLM2-135M-Instruct, and a short answer.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${KVANT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvant}/models/SmolLM2-135M-Instruct.Q4_1.gguf
# Shows a command so that it can be pasted, then runs it.
run() {
  printf '\n$'
  for word; do
    case $word in
      "$model") printf ' "$MODEL"' ;;
      *[!A-Za-z0-9_./,=:-]* | '') printf ' %s' "${word@Q}" ;;
      *) printf ' %s' "$word" ;;
    esac
  done
  printf '\n'
  "$@"
}

echo "MODEL=${model@Q}"
run build/kvant generate "$model" --kv int8 --chat -n 48 -p "Why does a language model keep a cache of keys and values?"
run build/kvant compare "$model" --text data/wikitext2-test.txt --context 2048 \
  --kv bf16,int8,k8v4,int4,int3,int2,fp8,kivi4,kivi2,int8_token,int4_g32_z
