#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts N ranks of one job on this machine, one process a rank, and ends with the first failing exit code.
# With at least N GPUs every rank gets its own. With fewer, ranks share: NCCL then takes every rank for a host of its
# own and talks over loopback sockets, and a private MPS daemon lets their kernels overlap. GPU settings stay as they are.
set -u

usage() {
  cat <<'TEXT'
usage: launch-ranks.sh [--prefix] [--grace SECONDS] N [--] COMMAND [ARGUMENT...]

Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and ECHO_TP_RENDEZVOUS (a file
path for an ncclUniqueId). LOCAL_RANK is always the index of a GPU that exists: RANK modulo the number of GPUs.

  --prefix         put "[rank R] " before each line that a rank prints
  --grace SECONDS  how long the other ranks may go on after one failed, and after each signal (default 5)

Exit code: 0, or the code of the first rank that failed (128 + signal when it was killed); 64 usage, 69 no GPU.
ECHO_TP_LAUNCH_ANYWAY=1 starts the ranks on a machine without a GPU.
TEXT
}

say() { printf 'launch-ranks: %s\n' "$*" >&2; }

# What a profiler or a shim injects into the job must not reach helper programs.
clean_env() {
  env -u CUDA_INJECTION64_PATH -u NVTX_INJECTION64_PATH -u NCCL_PROFILER_PLUGIN -u LD_PRELOAD "$@"
}

prefix=no
grace=5
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=yes && shift ;;
    --grace) grace=${2-} && shift && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) say "unknown option '$1' (launch-ranks.sh --help lists them)" && exit 64 ;;
    *) break ;;
  esac
done
ranks=${1-}
if ! [[ $ranks =~ ^[1-9][0-9]{0,3}$ ]]; then
  say "the first argument is the number of ranks, got '$ranks'" && exit 64
fi
if ! [[ $grace =~ ^[0-9]+$ ]]; then
  say "--grace takes whole seconds, got '$grace'" && exit 64
fi
shift
if [ "${1-}" = -- ]; then shift; fi
if [ $# -eq 0 ]; then
  say "no command: launch-ranks.sh $ranks -- COMMAND [ARGUMENT...]" && exit 64
fi

# --- GPUs ---------------------------------------------------------------------------------------------------------
gpus=0
if [ -n "${CUDA_VISIBLE_DEVICES-}" ]; then
  IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
  gpus=${#visible[@]}
elif command -v nvidia-smi >/dev/null; then
  gpus=$(clean_env nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
fi
if [ "$gpus" -eq 0 ] && [ "${ECHO_TP_LAUNCH_ANYWAY-}" != 1 ]; then
  say "no GPU found (nvidia-smi -L lists none); ECHO_TP_LAUNCH_ANYWAY=1 starts the ranks all the same" && exit 69
fi

# --- private folder, MPS, and what happens at the end ---------------------------------------------------------------
base=${TMPDIR:-/tmp}
if [ ${#base} -gt 60 ]; then base=/tmp; fi # a socket path holds 107 bytes
work=$(mktemp -d "$base/echo-tp-ranks.XXXXXX") || exit 69
mps_dir= # of the daemon that we started

mps_answers() { echo get_server_list | clean_env timeout 5 nvidia-cuda-mps-control >/dev/null 2>&1; }

start_mps() {
  if [ -n "${CUDA_MPS_PIPE_DIRECTORY-}" ] && mps_answers; then return; fi
  if ! command -v nvidia-cuda-mps-control >/dev/null; then
    say "nvidia-cuda-mps-control not found: ranks that share a GPU take turns on it, so times mean little"
    return
  fi
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  # The daemon serves all GPUs: a daemon that sees a few renumbers them, and the ranks' own choice would then miss.
  clean_env env -u CUDA_VISIBLE_DEVICES nvidia-cuda-mps-control -d </dev/null >"$work/mps-start" 2>&1 8>&- 9>&-
  for _ in $(seq 100); do
    if mps_answers; then
      mps_dir=$CUDA_MPS_PIPE_DIRECTORY
      echo "$mps_dir" >"$work/mps-dir"
      return
    fi
    sleep 0.1
  done
  say "the MPS daemon did not answer in 10 s ($(tail -n 1 "$work/mps-start")): ranks take turns on the GPU, times mean little"
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

stop_mps() { # $1: pipe directory, may be empty
  local daemon=
  if [ -z "$1" ]; then return; fi
  daemon=$(cat "$1/nvidia-cuda-mps-control.pid" 2>/dev/null)
  echo quit | CUDA_MPS_PIPE_DIRECTORY=$1 clean_env timeout 15 nvidia-cuda-mps-control >/dev/null 2>&1
  for _ in $(seq 50); do
    if [ -z "$daemon" ] || ! kill -0 "$daemon" 2>/dev/null; then return; fi
    sleep 0.1
  done
  kill -KILL "$daemon" 2>/dev/null
}

signal_groups() { # $1: signal, then process groups: each rank leads one, so that its own children get the signal too
  local name=$1 group
  shift
  for group in "$@"; do kill "-$name" -- "-$group" 2>/dev/null; done
}

# Outlives this script. Were it killed outright, the watcher would end the ranks and the MPS daemon in its place.
watch() {
  local word groups=()
  trap '' INT TERM HUP QUIT
  if read -r word <"$work/alive" && [ "$word" = ended ]; then return; fi
  mapfile -t groups 2>/dev/null <"$work/groups"
  signal_groups TERM "${groups[@]}"
  sleep "$grace"
  signal_groups KILL "${groups[@]}"
  stop_mps "$(cat "$work/mps-dir" 2>/dev/null)"
  rm -rf "$work"
}

mkfifo "$work/alive" "$work/tick"
set -m
watch </dev/null >/dev/null 2>&1 &
watcher=$!
set +m
exec 8>"$work/alive" 9<>"$work/tick"

pids=()
received=
signals=0
# shellcheck disable=SC2317  # called by the traps
on_signal() {
  received=$1
  signals=$((signals + 1))
  if [ "$signals" -gt 2 ]; then signal_groups KILL "${pids[@]}"; else signal_groups "$1" "${pids[@]}"; fi
}
for name in INT TERM HUP QUIT; do
  # shellcheck disable=SC2064  # the name is meant to be expanded now
  trap "on_signal $name" "$name"
done
trap 'signal_groups USR1 "${pids[@]}"' USR1
trap 'signal_groups USR2 "${pids[@]}"' USR2

shared=no
if [ "$gpus" -gt 0 ] && [ "$ranks" -gt "$gpus" ]; then
  shared=yes
  start_mps
fi

# --- start -----------------------------------------------------------------------------------------------------------
free_port() { # below the range that the kernel hands out by itself
  local port
  for _ in $(seq 50); do
    port=$((20000 + RANDOM % 10000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port" && return
    fi
  done
  echo 29500
}
export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
export MASTER_PORT=${MASTER_PORT:-$(free_port)}
export ECHO_TP_RENDEZVOUS=$work/nccl-id
if [ "$shared" = yes ]; then
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} NCCL_IB_DISABLE=1
fi

# bash reports children that a signal ended, in its own words, on standard error: kept apart from the job's.
exec 7>&2 2>/dev/null
filters=()
for ((rank = 0; rank < ranks; ++rank)); do
  if [ "$prefix" = yes ]; then
    for stream in out err; do
      mkfifo "$work/$stream.$rank"
      target=1
      if [ "$stream" = err ]; then target=7; fi
      (trap '' INT TERM HUP && exec sed -u "s/^/[rank $rank] /" <"$work/$stream.$rank" >&"$target" 8>&- 9>&-) &
      filters+=($!)
    done
  fi
  set -m
  (
    export RANK=$rank LOCAL_RANK=$rank
    if [ "$shared" = yes ]; then
      export LOCAL_RANK=$((rank % gpus)) NCCL_HOSTID=h$rank
    fi
    exec 2>&7 7>&- 8>&- 9>&-
    if [ "$prefix" = yes ]; then exec >"$work/out.$rank" 2>"$work/err.$rank"; fi
    exec "$@"
  ) </dev/null &
  pids+=($!)
  set +m
  printf '%s\n' "${pids[@]}" >"$work/groups"
  # A signal that came before this rank existed did not reach it.
  if [ "$signals" -gt 0 ]; then signal_groups "$received" "${pids[@]}"; fi
done

# --- wait ------------------------------------------------------------------------------------------------------------
# From the first failure or the first signal on, ranks have `grace` seconds to end by themselves and as long again after
# TERM; then they are killed. Polled: bash's `wait -n` loses a child that ended while it was not waiting.
status=0
escalation=(TERM KILL)
deadline=
waiting=("${!pids[@]}")
while [ ${#waiting[@]} -gt 0 ]; do
  read -rt 0.1 -u 9
  left=()
  for rank in "${waiting[@]}"; do
    if kill -0 "${pids[rank]}" 2>/dev/null; then
      left+=("$rank")
      continue
    fi
    wait "${pids[rank]}"
    code=$?
    if [ "$code" -eq 0 ] || [ "$status" -ne 0 ]; then continue; fi
    status=$code
    if [ "$signals" -eq 0 ] && [ "$ranks" -gt 1 ]; then say "rank $rank ended with $code; ending the others" 2>&7; fi
  done
  waiting=("${left[@]}")
  if [ "$signals" -eq 0 ] && [ "$status" -eq 0 ]; then continue; fi
  if [ -z "$deadline" ]; then
    deadline=$((SECONDS + grace))
  elif [ "$SECONDS" -ge "$deadline" ] && [ ${#escalation[@]} -gt 0 ]; then
    signal_groups "${escalation[0]}" "${pids[@]}"
    escalation=("${escalation[@]:1}")
    deadline=$((SECONDS + grace))
  fi
done

# --- end -------------------------------------------------------------------------------------------------------------
if [ "$status" -ne 0 ]; then signal_groups KILL "${pids[@]}"; fi # children that a failed rank left behind
if [ ${#filters[@]} -gt 0 ]; then wait "${filters[@]}"; fi
stop_mps "$mps_dir"
echo ended >&8
exec 8>&-
wait "$watcher"
rm -rf "$work"
exit "$status"
