#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs real jobs under the recorder with the environment set by hand, and prints what was recorded: calls, their facts,
# how many kernels were joined, notes, and what recording cost. Usage: recorder_probe.sh BUILD_DIR OUT_DIR; 77 without a GPU.
set -u

build=$(cd "${1:?build folder}" && pwd)
mkdir -p "${2:?output folder}"
out=$(cd "$2" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || { echo "SKIPPED: no GPU"; exit 77; }

recorder=$build/lib/echo-tp/libecho-tp-recorder.so
ranks=$source/share/launch-ranks.sh
dump=$build/bin/trace-dump

# record NAME OPTIONS COMMAND...: one run of two ranks under the recorder, then what it left.
record() {
  local name=$1 options=$2
  shift 2
  rm -rf "${out:?}/$name"
  mkdir -p "$out/$name"
  echo "=== $name"
  ECHO_TP_RECORD_DIR=$out/$name ECHO_TP_RECORD_OPTIONS=$options CUDA_INJECTION64_PATH=$recorder NVTX_INJECTION64_PATH=$recorder \
    NCCL_PROFILER_PLUGIN=$recorder timeout 200 "$ranks" 2 -- "$@" >"$out/$name.log" 2>&1
  echo "exit code $?"
  grep -E '^(result|step [0-9]+):|rror' "$out/$name.log" | tail -n 4
  for part in "$out/$name"/*.part; do
    [ -e "$part" ] || { echo "nothing was recorded"; return; }
    echo "size $(stat -c %s "$part")"
    "$dump" "$part"
  done
}

# plain NAME COMMAND...: the same without the recorder, for the cost of recording.
plain() {
  local name=$1
  shift
  echo "=== $name, not recorded"
  timeout 200 "$ranks" 2 -- "$@" >"$out/$name.plain.log" 2>&1
  echo "exit code $?"
  grep -E '^result:' "$out/$name.plain.log"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
job=(--preset qwen3-8b --layers 4 --steps 20 --warmup 3)
plain prefill "$build/bin/tp-job" "${job[@]}" --mode prefill --tokens 2048 --sequence 2048
record prefill '{}' "$build/bin/tp-job" "${job[@]}" --mode prefill --tokens 2048 --sequence 2048
plain decode "$build/bin/tp-job" "${job[@]}" --mode decode --steps 200
record decode '{}' "$build/bin/tp-job" "${job[@]}" --mode decode --steps 200
record decode-no-callbacks '{"launch_callbacks":false}' "$build/bin/tp-job" "${job[@]}" --mode decode --steps 200
record graph '{}' "$build/bin/tp-job" "${job[@]}" --mode decode --graph --steps 50

cat >"$out/tiny.py" <<'P'
import os, time, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
a = torch.ones(1 << 20, dtype=torch.bfloat16, device="cuda")
b = torch.ones(4096, dtype=torch.float32, device="cuda")
for _ in range(5): dist.all_reduce(a); dist.all_reduce(b, op=dist.ReduceOp.MAX)
torch.cuda.synchronize()
with torch.cuda.nvtx.range("steps"):
    start = time.time()
    for _ in range(20):
        c = a * 2
        dist.all_reduce(a)
        work = dist.all_reduce(b, op=dist.ReduceOp.MAX, async_op=True)
        work.wait()
    torch.cuda.synchronize()
print("result: step_ms=%.4f" % ((time.time() - start) * 50))
dist.destroy_process_group()
P
if python3 -c 'import torch' 2>/dev/null; then
  plain torch python3 "$out/tiny.py"
  record torch '{}' python3 "$out/tiny.py"
  echo "=== who holds CUPTI: torch.profiler in the same process"
  cat >"$out/kineto.py" <<'P'
import torch
from torch.profiler import profile, ProfilerActivity
x = torch.ones(1024, 1024, device="cuda")
with profile(activities=[ProfilerActivity.CUDA]) as p:
    for _ in range(3): x = x @ x
    torch.cuda.synchronize()
print("result: kineto events", len(p.events()))
P
  record kineto '{}' python3 "$out/kineto.py"
fi
