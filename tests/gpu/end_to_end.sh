#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole chain on a real GPU with real NCCL: profile, run (eager, graph, several ranks), a dead rank, PyTorch.
# Usage: end_to_end.sh BUILD_DIR SOURCE_DIR. Exits 77 where there is no GPU.
set -u
build=$1
source=$2
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || { echo "SKIPPED: no GPU"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo_tp=$build/bin/echo-tp
job=$build/bin/tp-job
ranks=$source/share/launch-ranks.sh
failures=0

check() { # check WHAT COMMAND...
  local what=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "ok    $what"
  else
    echo "FAIL  $what"
    tail -n 30 "$work/log" | sed 's/^/      /'
    failures=$((failures + 1))
  fi
}

holds() { # holds FILE PYTHON_EXPRESSION over the document d
  python3 - "$1" "$2" <<'P'
import json, sys
d = json.load(open(sys.argv[1]))
if not eval(sys.argv[2]):
    print("does not hold:", sys.argv[2])
    print(json.dumps(d.get("totals", d), indent=1)[:2000])
    sys.exit(1)
P
}

cat >"$work/policy.json" <<'J'
{"schema": "echo-tp/policy/1",
 "rules": [{"match": {"dtype": ["bf16"], "op": ["sum"], "min_bytes": 65536, "ranks": [2, 8]},
            "compensation": {"mode": "both", "a": 0.9, "bf": 0.0, "b": 0.1, "bs": 0.9, "state": "int8"}}]}
J

tiny=(--preset tiny --layers 4 --tokens 512 --steps 6 --warmup 2)
run_job() { # run_job REPORT RANKS ARGS...
  local report=$1 n=$2
  shift 2
  timeout 150 "$echo_tp" run --policy "$work/policy.json" --report "$report" --force --require -- "$ranks" "$n" -- "$job" "${tiny[@]}" "$@"
}

for n in 2 4; do
  check "run: $n ranks, every rank holds the same bytes" run_job "$work/run$n.json" $n --mode prefill --verify-ranks --check-finite
  check "run: $n ranks, every eligible call was compressed" holds "$work/run$n.json" \
    "d['totals']['compressed'] > 0 and set(d['totals']['by_reason']) <= {'compressed', 'below_min_bytes', 'datatype', 'operator'} and d['ranks_seen'] == $n"
done
check "run: captured in a CUDA graph" run_job "$work/graph.json" 2 --mode decode --decode-tokens 256 --graph --check-finite
check "run: captured calls were compressed" holds "$work/graph.json" "any(c['captured'] > 0 for p in d['processes'] for c in p['communicators'])"

# Replays, eager calls, streams and threads mixed on one communicator; chunks small enough that the larger messages are
# pipelined. A pass of that job has four calls.
sed 's/"compensation"/"pass": {"calls": 4}, &/' "$work/policy.json" >"$work/passes.json"
for n in 2 4; do
  check "run: $n ranks, graph replays and eager calls in any order give the same bits" \
    env ECHO_TP_CHUNK_ELEMENTS=65536 timeout 300 "$echo_tp" run --policy "$work/passes.json" --report "$work/mixed$n.json" --force --require -- \
    "$ranks" "$n" -- "$build/bin/graph-job"
  check "run: $n ranks, captured calls were compressed and compensated" holds "$work/mixed$n.json" \
    "all(c['captured'] > 0 and c['uncompensated'] == 0 for p in d['processes'] for c in p['communicators']) and len(d['processes']) == $n"
done

# Mode drift: several chunks a message; then a width that no message has, so that every call goes uncorrected.
for channels in 256 96; do
  sed "s/\"mode\": \"both\".*int8\"/\"mode\": \"drift\", \"channels\": $channels/" "$work/policy.json" >"$work/drift.json"
  check "run: mode drift, channels $channels" env ECHO_TP_CHUNK_ELEMENTS=30000 timeout 150 "$echo_tp" run --policy "$work/drift.json" \
    --report "$work/drift$channels.json" --force --require -- "$ranks" 2 -- "$job" "${tiny[@]}" --mode prefill --verify-ranks --check-finite
done
check "run: mode drift corrected every call" holds "$work/drift256.json" \
  "d['totals']['compressed'] > 0 and d['totals']['uncompensated'] == 0 and all(c['state_bytes'] in (0, 6144) for p in d['processes'] for c in p['communicators'])"
check "run: mode drift corrects whole tokens alone" holds "$work/drift96.json" \
  "d['totals']['uncompensated'] == d['totals']['compressed'] > 0"

check "profile: records the job" timeout 150 "$echo_tp" profile -o "$work/job.echoprof" -- "$ranks" 2 -- "$job" "${tiny[@]}" --mode prefill
check "profile: show reads it" bash -c "'$echo_tp' show '$work/job.echoprof' --json >'$work/show.json'"
check "estimate: answers from it" bash -c "'$echo_tp' estimate '$work/job.echoprof' --json >'$work/estimate.json'"

kill_one() {
  # Rank 1 dies in the middle; the others must end with an error well inside the limit instead of waiting for ever.
  local status=0
  timeout 100 "$echo_tp" run --policy "$work/policy.json" --report "$work/dead.json" --force -- \
    "$ranks" 2 -- bash -c 'if [ "$RANK" = 1 ]; then "$0" "$@" & sleep 4; kill -9 $!; wait $!; exit 137; else exec "$0" "$@"; fi' \
    "$job" --preset tiny --layers 4 --tokens 512 --steps 1000000 --warmup 1 --mode prefill || status=$?
  [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && [ -s "$work/dead.json" ]
}
check "run: a killed rank ends the job with an error, and the report is written" kill_one

if python3 -c 'import torch, transformers' 2>/dev/null; then
  check "run: PyTorch training under the shim" timeout 200 "$echo_tp" run --policy "$work/policy.json" --report "$work/torch.json" --force --require -- \
    "$ranks" 2 -- python3 "$source/tests/jobs/tp_torch.py" --mode train --steps 5 --layers 2 --hidden 512
  check "run: PyTorch's all-reduces were compressed" holds "$work/torch.json" "d['totals']['compressed'] > 0 and d['ranks_seen'] == 2"
else
  echo "skip  PyTorch is not installed"
fi

echo "$failures failures"
[ "$failures" -eq 0 ]
