#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clients that reach NCCL in their own ways, under the shim: each must end, stay within the codec's bound on every rank, and
# be seen whole. Usage: clients.sh BUILD_DIR SOURCE_DIR [RANKS=2]. Exits 77 where there is no GPU; a package that is
# missing skips its client by name.
set -u
build=$1
source=$2
ranks=${3:-2}
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || { echo "SKIPPED: no GPU"; exit 77; }
command -v python3 >/dev/null || { echo "SKIPPED: no python3"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
cat >"$work/policy.json" <<'J'
{"schema": "echo-tp/policy/1",
 "rules": [{"match": {"dtype": ["fp32"], "op": ["sum"], "min_bytes": 65536}, "compensation": {"mode": "both"}}]}
J

client() { # $1: name, $2: what the run report must hold
  local name=$1 code=0
  timeout 280 "$build/bin/echo-tp" run --policy "$work/policy.json" --report "$work/$name.json" --verbose -- \
    "$source/share/launch-ranks.sh" "$ranks" -- python3 "$source/tests/gpu/clients/client_$name.py" >"$work/log" 2>&1 || code=$?
  if grep -q '^SKIPPED' "$work/log"; then
    echo "skip  $name: $(grep -m1 '^SKIPPED' "$work/log")"
  elif [ "$code" -eq 0 ] && [ "$(grep -c "^client $name:" "$work/log")" -eq "$ranks" ] &&
    python3 - "$work/$name.json" "$2" <<'P'
import json, sys
d = json.load(open(sys.argv[1]))
t, c = d["totals"], d["coverage"]
print("      ", {"calls": t["calls"], "compressed": t["compressed"], "by_reason": t["by_reason"], "coverage": c})
sys.exit(not eval(sys.argv[2]))
P
  then
    echo "ok    $name: $(grep -m1 "^client $name:" "$work/log")"
  else
    echo "FAIL  $name (exit code $code)"
    tail -n 30 "$work/log" | sed 's/^/      /'
    failures=$((failures + 1))
  fi
}

seen='c is not None and c["missed"] == 0 and d["ranks_seen"] >= '$ranks
client pynccl "t['compressed'] >= 8 * $ranks and $seen"
client cupy "t['compressed'] >= 8 * $ranks and $seen"
# XLA may make its communicators non-blocking: those are left to NCCL, with that reason.
client jax "t['calls'] >= 8 * $ranks and (t['compressed'] > 0 or t['by_reason'].get('not_set_up', 0) > 0) and $seen"
[ "$failures" -eq 0 ]
