#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C++ job on a GPU: 1, 2 and 4 ranks compute the same function (up to rounding), ranks hold the same bytes, a CUDA
# graph replays what eager launches do. Usage: tp_job_test.sh TP_JOB; 77 without a GPU.
set -u

here=$(cd "$(dirname "$0")" && pwd)
job=$1
launcher=$here/../../share/launch-ranks.sh
if [ -z "$("$here/../scripts/gpu-architecture.sh")" ]; then
  echo "SKIPPED (no GPU)"
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
failed() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

run() { # $1: ranks, $2: name of the dump, rest: options
  local ranks=$1 name=$2
  shift 2
  timeout 300 "$launcher" "$ranks" -- "$job" --preset tiny --tokens 512 --sequence 128 --decode-tokens 16 --context 64 \
    --steps 3 --warmup 1 --check-finite --verify-ranks --dump "$scratch/$name" "$@" >"$scratch/log" 2>&1
  local code=$?
  if [ "$code" -ne 0 ] || ! grep -q '^result: step_ms=[0-9.]* .* checksum=[0-9.e+]* nonfinite=0 ' "$scratch/log"; then
    failed "$ranks ranks, $*: exit code $code"
    tail -n 5 "$scratch/log"
  fi
}

# RMS of the difference of two dumps (raw bf16) over the RMS of the first.
relative_error() {
  paste <(od -An -v -tu2 -w2 "$scratch/$1") <(od -An -v -tu2 -w2 "$scratch/$2") | awk '
    function value(u,  e) { e = int(u / 128) % 256; return (u >= 32768 ? -1 : 1) * (1 + u % 128 / 128) * 2 ^ (e - 127) }
    { a = value($1); b = value($2); d += (a - b) ^ 2; s += a ^ 2 }
    END { if (s > 0) printf "%.6f\n", sqrt(d / s); else print "empty" }'
}

for mode in prefill decode; do
  run 1 "$mode.1" --mode "$mode"
  for ranks in 2 4; do
    run "$ranks" "$mode.$ranks" --mode "$mode"
    error=$(relative_error "$mode.1" "$mode.$ranks")
    echo "$mode, $ranks ranks against 1: relative error $error"
    # bf16 keeps 8 bits: partial sums rounded in another order differ by well under a percent. A wrong slice gives about 1.
    awk -v e="$error" 'BEGIN { exit !(e != "empty" && e < 0.02) }' || failed "$mode: $ranks ranks differ from 1 by $error"
  done
done
# 3 measured steps after 1 that is not: the last is number 3.
if command -v python3 >/dev/null; then
  for ranks in 1 2; do
    python3 "$here/tp_reference.py" "$scratch/prefill.$ranks" 512 128 3
    code=$?
    if [ "$code" -ne 0 ] && [ "$code" -ne 77 ]; then failed "prefill on $ranks ranks is not what the reference computes"; fi
  done
fi
run 2 graph --mode decode --graph
cmp "$scratch/decode.2" "$scratch/graph" || failed "a replayed decode step differs from an eager one"
run 2 another --mode prefill --seed 2
cmp -s "$scratch/prefill.2" "$scratch/another" && failed "another seed gives the same result"
if [ "$failures" -gt 0 ]; then exit 1; fi
