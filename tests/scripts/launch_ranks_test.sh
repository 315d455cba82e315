#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests share/launch-ranks.sh without a GPU: exit codes, ending of the other ranks, signals, clean-up, and, with made-up
# nvidia-smi and MPS programs on PATH, how ranks are put on GPUs. Usage: launch_ranks_test.sh [CASE]; no case: all.
# shellcheck disable=SC2016  # commands in single quotes are for the ranks
set -u

launcher=$(cd "$(dirname "$0")/../../share" && pwd)/launch-ranks.sh
scratch=$(mktemp -d)
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"
trap 'rm -rf "$scratch"' EXIT
unset CUDA_VISIBLE_DEVICES CUDA_MPS_PIPE_DIRECTORY NCCL_HOSTID NCCL_SOCKET_IFNAME NCCL_IB_DISABLE MASTER_PORT
failures=0

expect() { # $1: what, $2: wanted, $3: got
  if [ "$2" != "$3" ]; then
    printf 'FAILED %s: expected <%s>, got <%s>\n' "$1" "$2" "$3"
    failures=$((failures + 1))
  fi
}
# Without the GPUs that this machine may have: they would decide where ranks go.
mkdir "$scratch/no-gpu"
printf '#!/bin/sh\nexit 9\n' >"$scratch/no-gpu/nvidia-smi"
chmod +x "$scratch/no-gpu/nvidia-smi"
launch() { PATH=$scratch/no-gpu:$PATH ECHO_TP_LAUNCH_ANYWAY=1 timeout -k 1 30 "$launcher" "$@"; }
wait_for() { # $1: file that appears within 10 s
  for _ in $(seq 100); do
    if [ -e "$1" ]; then return; fi
    sleep 0.1
  done
  expect "file $1" present missing
}
is_alive() { if kill -0 "$1" 2>/dev/null && ! grep -q 'State:.Z' "/proc/$1/status"; then echo yes; else echo no; fi; }

case_environment() {
  local out
  out=$(launch 3 -- sh -c 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port} ${ECHO_TP_RENDEZVOUS:+file} ${NCCL_HOSTID-none}"' | sort)
  expect "environment" "$(printf '%s\n' {0..2}' '{0..2}' 3 3 127.0.0.1 port file none' | awk '$1 == $2')" "$out"
  out=$(launch 2 printf '%s|' 'a b' '*' -- | head -c 1000)
  expect "arguments pass untouched" 'a b|*|--|a b|*|--|' "$out"
}

case_exit_codes() {
  launch 2 -- true
  expect "all fine" 0 $?
  launch --grace 1 2 -- sh -c 'exit $((RANK * 7))' 2>/dev/null
  expect "a rank's code" 7 $?
  launch --grace 1 3 -- sh -c 'if [ $RANK = 2 ]; then exit 5; fi; sleep 1; exit 9' 2>/dev/null
  expect "the first failing code wins" 5 $?
  launch --grace 1 2 -- sh -c 'kill -SEGV $$' 2>/dev/null
  expect "killed by a signal" 139 $?
  launch --grace 1 2 -- /no/such/program 2>/dev/null
  expect "command not found" 127 $?
  launch 0 -- true 2>/dev/null
  expect "no ranks" 64 $?
  launch 2 -- 2>/dev/null
  expect "no command" 64 $?
  launch --bogus 2 -- true 2>/dev/null
  expect "unknown option" 64 $?
}

case_others_end() {
  local start=$SECONDS pid
  # Rank 0 ignores TERM and has a child of its own: only killing its whole process group ends both.
  launch --grace 1 2 -- sh -c '
    if [ $RANK = 1 ]; then sleep 0.5; exit 3; fi
    trap "" TERM; sleep 60 & echo $! >"$0/child"; echo $$ >"$0/leader"; wait; sleep 60' "$scratch" 2>"$scratch/log"
  expect "code of the rank that failed" 3 $?
  expect "ended in time" yes "$(if [ $((SECONDS - start)) -lt 15 ]; then echo yes; else echo no; fi)"
  expect "message" "launch-ranks: rank 1 ended with 3; ending the others" "$(cat "$scratch/log")"
  for pid in "$(cat "$scratch/child")" "$(cat "$scratch/leader")"; do expect "process gone" no "$(is_alive "$pid")"; done
}

case_grace() {
  # A rank that notices the failure by itself may finish its own message.
  launch --grace 5 2 -- sh -c 'if [ $RANK = 1 ]; then exit 3; fi; sleep 1; echo noticed >"$0/noticed"; exit 4' "$scratch" 2>/dev/null
  expect "code" 3 $?
  expect "time to finish" noticed "$(cat "$scratch/noticed" 2>/dev/null)"
}

case_signals() {
  local name code
  for name in TERM INT HUP; do
    rm -f "$scratch"/ready.* "$scratch"/got.*
    set -m # a background job without job control would ignore INT
    ECHO_TP_LAUNCH_ANYWAY=1 "$launcher" --grace 1 2 -- bash -c '
      trap "echo $1 >\"$0/got.$RANK\"; exit 42" $1; touch "$0/ready.$RANK"; while :; do sleep 0.1; done' "$scratch" "$name" &
    set +m
    wait_for "$scratch/ready.0"
    wait_for "$scratch/ready.1"
    kill "-$name" $!
    wait $!
    expect "code of ranks that handle $name" 42 $?
    expect "$name reached both" "$name $name" "$(cat "$scratch/got.0" "$scratch/got.1" 2>/dev/null | xargs)"
  done
  rm -f "$scratch"/ready.*
  ECHO_TP_LAUNCH_ANYWAY=1 "$launcher" --grace 1 2 -- sh -c 'touch "$0/ready.$RANK"; exec sleep 60' "$scratch" &
  wait_for "$scratch/ready.1"
  kill -TERM $!
  wait $!
  code=$?
  expect "code of ranks that TERM ends" 143 $code
}

case_killed_launcher() {
  local pid
  ECHO_TP_LAUNCH_ANYWAY=1 "$launcher" --grace 1 1 -- sh -c 'echo $$ >"$0/pid.part"; mv "$0/pid.part" "$0/pid"; exec sleep 60' "$scratch" &
  wait_for "$scratch/pid"
  pid=$(cat "$scratch/pid")
  kill -KILL $!
  wait $! 2>/dev/null
  for _ in $(seq 60); do
    if [ "$(is_alive "$pid")" = no ] && [ -z "$(ls "$TMPDIR")" ]; then break; fi
    sleep 0.1
  done
  expect "rank ended although the launcher was killed" no "$(is_alive "$pid")"
}

case_output() {
  launch 2 -- sh -c 'printf "a\nb\n"; echo err >&2' >"$scratch/out" 2>"$scratch/err"
  expect "standard output" "a a b b" "$(sort "$scratch/out" | xargs)"
  expect "standard error" "err err" "$(xargs <"$scratch/err")"
  launch --prefix 2 -- sh -c 'printf "a\nb\n"; echo err >&2' >"$scratch/out" 2>"$scratch/err"
  expect "prefixed output" "[rank 0] a [rank 0] b [rank 1] a [rank 1] b" "$(sort "$scratch/out" | xargs)"
  expect "prefixed errors" "[rank 0] err [rank 1] err" "$(sort "$scratch/err" | xargs)"
}

make_fakes() { # $1: number of GPUs
  mkdir -p "$scratch/bin"
  cat >"$scratch/bin/nvidia-smi" <<TEXT
#!/bin/sh
for i in \$(seq 0 $(($1 - 1))); do echo "GPU \$i: Made-up (UUID: GPU-\$i)"; done
TEXT
  cat >"$scratch/bin/nvidia-cuda-mps-control" <<'TEXT'
#!/bin/sh
here=$(dirname "$0")
if [ "${1-}" = -d ]; then
  env >"$here/daemon-env"
  sleep 600 >/dev/null 2>&1 </dev/null &
  echo $! >"$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
  echo $! >"$here/daemon-pid"
  exit 0
fi
read -r word
echo "$word" >>"$here/words"
pid=$(cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid" 2>/dev/null) || exit 1
kill -0 "$pid" 2>/dev/null || exit 1
if [ "$word" = quit ]; then kill "$pid"; fi
TEXT
  chmod +x "$scratch/bin/nvidia-smi" "$scratch/bin/nvidia-cuda-mps-control"
}

case_gpus() {
  local out show='echo "$RANK $LOCAL_RANK ${NCCL_HOSTID-none} ${NCCL_SOCKET_IFNAME-none} ${NCCL_IB_DISABLE-none} ${CUDA_MPS_PIPE_DIRECTORY:+mps}"'
  make_fakes 2
  PATH=$scratch/bin:$PATH "$launcher" 2 -- sh -c "$show" | sort >"$scratch/out"
  expect "a GPU for each rank" "$(printf '0 0 none none none \n1 1 none none none ')" "$(cat "$scratch/out")"
  expect "no MPS needed" no "$(if [ -e "$scratch/bin/daemon-env" ]; then echo yes; else echo no; fi)"
  CUDA_INJECTION64_PATH=x NVTX_INJECTION64_PATH=x NCCL_PROFILER_PLUGIN=x PATH=$scratch/bin:$PATH \
    "$launcher" 3 -- sh -c "$show"' ${CUDA_INJECTION64_PATH-lost}' | sort >"$scratch/out"
  out=$(printf '0 0 h0 lo 1 mps x\n1 1 h1 lo 1 mps x\n2 0 h2 lo 1 mps x')
  expect "shared GPUs" "$out" "$(sed 's/  */ /g' "$scratch/out")"
  expect "nothing injected into the daemon" 0 \
    "$(grep -cE '^(CUDA_INJECTION64_PATH|NVTX_INJECTION64_PATH|NCCL_PROFILER_PLUGIN|LD_PRELOAD)=' "$scratch/bin/daemon-env")"
  expect "daemon told to quit" 1 "$(grep -c quit "$scratch/bin/words")"
  expect "daemon ended" no "$(is_alive "$(cat "$scratch/bin/daemon-pid")")"
  out=$(CUDA_VISIBLE_DEVICES=1 PATH=$scratch/bin:$PATH "$launcher" 2 -- sh -c 'echo $LOCAL_RANK' | xargs)
  expect "only visible GPUs count" "0 0" "$out"
  expect "the daemon serves all GPUs" 0 "$(grep -c '^CUDA_VISIBLE_DEVICES=' "$scratch/bin/daemon-env")"

  mkdir "$scratch/mine" # a daemon that serves already is used and left alone
  CUDA_MPS_PIPE_DIRECTORY=$scratch/mine "$scratch/bin/nvidia-cuda-mps-control" -d
  out=$(CUDA_MPS_PIPE_DIRECTORY=$scratch/mine PATH=$scratch/bin:$PATH "$launcher" 3 -- sh -c 'echo $CUDA_MPS_PIPE_DIRECTORY' | sort -u)
  expect "the daemon that serves is used" "$scratch/mine" "$out"
  expect "and left alone" yes "$(is_alive "$(cat "$scratch/bin/daemon-pid")")"
  kill "$(cat "$scratch/bin/daemon-pid")"
  make_fakes 0
  PATH=$scratch/bin:$PATH "$launcher" 2 -- true 2>"$scratch/log"
  expect "no GPU" 69 $?
  expect "no GPU message" 1 "$(grep -c 'no GPU found' "$scratch/log")"
}

cases=(environment exit_codes others_end grace signals killed_launcher output gpus)
if [ $# -gt 0 ]; then cases=("$@"); fi
for name in "${cases[@]}"; do
  "case_$name"
  expect "nothing left behind by $name" "" "$(ls "$TMPDIR")"
done
if [ "$failures" -gt 0 ]; then exit 1; fi
echo "all fine: ${cases[*]}"
