#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random collectives with real NCCL: the job alone (that its own checks hold), then under the shim with compensation and
# without. Usage: fuzz.sh BUILD_DIR SOURCE_DIR [SECONDS=20] [RANKS=2] [SEED=1]. Exits 77 where there is no GPU.
# SECONDS is that of the compensated run; the two others take a quarter each. A failing seed is printed.
set -u
build=$1
source=$2
seconds=${3:-20}
ranks=${4:-2}
seed=${5:-1}
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || { echo "SKIPPED: no GPU"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
short=$(((seconds + 3) / 4))
job=("$source/share/launch-ranks.sh" "$ranks" -- "$build/bin/fuzz-collectives" --min-bytes 65536)
failures=0

policy() { # $1: file, $2: mode of compensation
  cat >"$1" <<J
{"schema": "echo-tp/policy/1",
 "rules": [{"match": {"dtype": ["bf16", "fp16", "fp32"], "op": ["sum", "avg"], "min_bytes": 65536},
            "compensation": {"mode": "$2"}, "pass": {"calls": 7, "resync": ["all_gather"]}}]}
J
}

round() { # $1: what, $2: seconds, then the command in front of the job
  local what=$1 duration=$2
  shift 2
  if timeout $((duration + 300)) "$@" "${job[@]}" --seed "$seed" --seconds "$duration" >"$work/log" 2>&1; then
    echo "ok    $what: $(grep -m1 '^fuzz:' "$work/log")"
  else
    echo "FAIL  $what (exit code $?), seed $seed, $ranks ranks"
    tail -n 40 "$work/log" | sed 's/^/      /'
    failures=$((failures + 1))
  fi
}

policy "$work/both.json" both
policy "$work/none.json" none
round "NCCL alone" "$short" env
grep -q ' 0 all-reduces were not exact' "$work/log" || { echo "FAIL  NCCL alone was not exact"; failures=$((failures + 1)); }
round "observed" "$short" "$build/bin/echo-tp" run --mode observe --report "$work/observe.json" --
round "uncompensated" "$short" "$build/bin/echo-tp" run --policy "$work/none.json" --report "$work/none.report" --require --
round "compensated" "$seconds" "$build/bin/echo-tp" run --policy "$work/both.json" --report "$work/both.report" --require --
[ "$failures" -eq 0 ]
