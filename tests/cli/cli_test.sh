#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the echo-tp executable as people do, without a GPU: exit codes, messages, files, signals. It is copied into a prefix
# of its own with made-up libraries beside it, so that only its own behaviour is tested.
# Usage: cli_test.sh CASE ECHO_TP FIXTURE LIBRARY SOURCE_DIR
# shellcheck disable=SC2016  # commands in single quotes are for the jobs
set -u

case=$1
fixture=$3
library=$4
source=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/prefix/bin" "$work/prefix/lib/echo-tp" "$work/tmp" "$work/here"
cp "$2" "$work/prefix/bin/echo-tp"
for name in shim engine recorder witness; do cp "$library" "$work/prefix/lib/echo-tp/libecho-tp-$name.so"; done
echo_tp=$work/prefix/bin/echo-tp
export TMPDIR=$work/tmp LC_ALL=C.UTF-8
for name in $(compgen -e); do
  case $name in ECHO_TP* | NCCL_* | LD_PRELOAD | CUDA_* | NVTX_* | NO_COLOR | CLICOLOR* | RANK | WORLD_SIZE) unset "$name" ;; esac
done
# In a build with sanitizers the jobs are our own programs, and what is preloaded comes before the sanitizer.
export ASAN_OPTIONS=verify_asan_link_order=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
cd "$work/here" || exit 1
failures=0

expect() { # $1: what, $2: wanted, $3: got
  if [ "$2" != "$3" ]; then
    printf 'FAILED %s: expected <%s>, got <%s>\n' "$1" "$2" "$3"
    failures=$((failures + 1))
  fi
}
# try CODE TEXT WORDS...: runs echo-tp without a terminal; its code, and a text that stdout or stderr must hold.
try() {
  local wanted=$1 text=$2 code=0
  shift 2
  setsid -w "$echo_tp" "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
  expect "code of: echo-tp $*" "$wanted" "$code"
  if [ -n "$text" ] && ! cat "$work/out" "$work/err" | grep -qF -e "$text"; then
    expect "text of: echo-tp $*" "$text" "$(head -c 1500 "$work/out" "$work/err")"
  fi
}
lines() { grep -c '' "$work/err"; }
nothing_left() { expect "files left behind ($1)" "" "$(find "$work/here" "$work/tmp" -mindepth 1 | sort)"; }
wait_for() { # $1: file that appears within 20 s
  for _ in $(seq 200); do
    if [ -e "$1" ]; then return; fi
    sleep 0.1
  done
  expect "file $1" present missing
}
is_alive() { if kill -0 "$1" 2>/dev/null && ! grep -q 'State:.Z' "/proc/$1/status"; then echo yes; else echo no; fi; }
policy() { cp "$source/share/policies/default.json" "$work/policy.json"; }
# A folder for a case's outputs, outside of those that must stay empty.
mkdir "$work/files"

case_usage() {
  try 2 "unknown command 'prfile'; did you mean 'profile'?" prfile
  try 2 "no command" -q
  try 2 "unknown option '--qiet'; did you mean '--quiet'?" --qiet
  try 2 "unknown option '--polcy-out'; did you mean '--policy-out'?" estimate x --polcy-out y
  try 2 "missing: PROFILE" estimate
  try 2 "one argument too many: 'b'" show a b
  try 2 "one argument too many: 'b'" show a -- b
  try 2 "one argument too many: 'out'; if --json is to write it: --json=out" show a --json out
  try 125 "if --json is to write it: --json=out" run --mode observe --json out -- true
  try 2 "--no-such: No such file" show -- --no-such
  try 2 "unknown action 'chek'; did you mean 'check'?" policy chek x
  try 2 "'x' is not a whole number from 1 to 1000" ab -n x --policy p --metric m -- true
  try 2 "--color: 'mauve' is not auto, always or never" show a --color mauve
  try 2 "--policy" estimate x --policy
  expect "one line" 1 "$(lines)"
  # A value that is missing, swallowed by the next option, or given twice; a flag with one.
  try 125 "echo-tp: --policy: needs a value" run -p -- true
  try 125 "echo-tp: --policy: needs a value, but '--mode' follows it" run -p --mode observe -- true
  try 2 "echo-tp: --metric: needs a value, but '--policy' follows it" ab --metric --policy p -- true
  try 2 "echo-tp: --costs: is given twice" estimate x --costs a --costs b
  try 2 "echo-tp: --force: takes no value" show x --force=perhaps
  try 2 "echo-tp: --json: takes no value" policy check x --json=y
  try 2 "echo-tp: --json: takes no value" doctor --json=y
  for command in "policy explain x --bytes" "bench --sizes"; do
    # shellcheck disable=SC2086
    try 2 "'1M' is not a size; expected bytes, or a whole number of KiB, MiB, GiB (1024s) or KB, MB, GB (1000s), such as 4MiB" $command 1M
  done
  # Options are looked at before drivers are.
  try 2 "'1x' is not a size" bench --sizes 1MiB,1x
  try 2 "'6' is not a whole number of elements of 4 bytes" bench --sizes 6 --dtype fp32
  try 2 "--states: 'int4' is not known; expected fp32, fp16, int8" bench --states int8,int4
  try 2 "--graph: does not go with --loopback" bench --loopback 2 --graph
  # Before a job, everything wrong is 125: a 2 could be the job's own.
  try 125 "put -- before the job's command: echo-tp run -p 'p q.json' -- torchrun --nproc 2 serve.py" run -p 'p q.json' torchrun --nproc 2 serve.py
  try 125 "put -- before the job's command: echo-tp profile -- ls -l" profile ls -l
  try 125 "unknown option '--polcy'; did you mean '--policy'?" run --polcy p -- true
  try 125 "no job; put its command after --" profile
  try 125 "nothing follows the --" profile --
  try 125 "missing: --policy FILE" run -- true
  try 125 "'both' is not compress or observe" run --mode both -- true
  try 2 "only one of the two" ab --lower-is-better --higher-is-better --policy p --metric 'a=(.)' -- true
  nothing_left usage
}

case_exit_codes() {
  for command in "run --mode observe --report $work/files/r --force" "profile -o $work/files/p --force"; do
    # shellcheck disable=SC2086
    {
      try 0 "" $command -- true
      try 7 "" $command -- sh -c 'exit 7'
      try 125 "" $command -- sh -c 'exit 125'
      try 127 "no-such-program: command not found" $command -- no-such-program
      try 127 "/no/such: command not found" $command -- /no/such --option
      try 126 "is a folder" $command -- /tmp
      touch "$work/files/plain"
      try 126 "can't be executed" $command -- "$work/files/plain"
      printf '#!/no/such/interpreter\n' >"$work/files/script" && chmod +x "$work/files/script"
      try 127 "its interpreter was not found: /no/such/interpreter" $command -- "$work/files/script"
      try 139 "signal 11 (SIGSEGV)" $command -- sh -c 'kill -SEGV $$'
      try 137 "" $command -- sh -c 'kill -KILL $$'
      try 127 "command not found" $command -- ''
    }
  done
  nothing_left exit_codes
}

case_output() {
  head -c 100000 /dev/urandom >"$work/files/random"
  "$echo_tp" run --mode observe --report "$work/files/r" -- cat <"$work/files/random" >"$work/files/run" 2>/dev/null
  cmp "$work/files/random" "$work/files/run"
  expect "run: standard output byte by byte" 0 $?
  "$echo_tp" profile -o "$work/files/p" -- sh -c 'cat; exit 3' <"$work/files/random" >"$work/files/profile" 2>/dev/null
  expect "profile: the job's code" 3 $?
  cmp "$work/files/random" "$work/files/profile"
  expect "profile: standard output byte by byte" 0 $?
  "$echo_tp" -q profile -o "$work/files/q" -- sh -c 'printf "to stderr" >&2' 2>"$work/files/err"
  expect "profile -q: standard error holds the job's alone" "to stderr" "$(cat "$work/files/err")"
  expect "arguments pass untouched" 'a b|*|--|-o|' "$("$echo_tp" -q profile -o "$work/files/a" -- printf '%s|' 'a b' '*' -- -o)"
  # A reader that goes away must not keep the report from being written.
  "$echo_tp" run --mode observe --report "$work/files/pipe.json" -- sh -c 'sleep 0.3' 2>&1 | true
  expect "report in spite of a closed pipe" yes "$(if [ -s "$work/files/pipe.json" ]; then echo yes; fi)"
  nothing_left output
}

case_environment() {
  policy
  local show='for name in LD_PRELOAD ECHO_TP_POLICY ECHO_TP_MODE ECHO_TP_RUN_DIR ECHO_TP_ENGINE ECHO_TP_RECORD_DIR CUDA_INJECTION64_PATH NVTX_INJECTION64_PATH NCCL_PROFILER_PLUGIN; do eval "echo $name=\${$name-unset}"; done'
  local lib=$work/prefix/lib/echo-tp
  try 0 "LD_PRELOAD=$lib/libecho-tp-shim.so" run --policy "$work/policy.json" --report "$work/files/r" -- sh -c "$show"
  expect "policy" "ECHO_TP_POLICY=$work/policy.json" "$(grep ^ECHO_TP_POLICY "$work/out")"
  expect "mode" "ECHO_TP_MODE=compress" "$(grep ^ECHO_TP_MODE "$work/out")"
  expect "engine" "ECHO_TP_ENGINE=$lib/libecho-tp-engine.so" "$(grep ^ECHO_TP_ENGINE "$work/out")"
  expect "no recorder" "CUDA_INJECTION64_PATH=unset" "$(grep ^CUDA_INJ "$work/out")"
  (cd "$work" && LD_PRELOAD=$library try 0 "LD_PRELOAD=$lib/libecho-tp-shim.so:$library" run -p policy.json -o "$work/files/r2" -- sh -c "$show")
  ECHO_TP=off try 0 "ECHO_TP=off is set" run -p "$work/policy.json" -o "$work/files/r3" -- true

  try 0 "CUDA_INJECTION64_PATH=$lib/libecho-tp-recorder.so" profile -o "$work/files/p" -- sh -c "$show"
  expect "nvtx" "NVTX_INJECTION64_PATH=$lib/libecho-tp-recorder.so" "$(grep ^NVTX "$work/out")"
  expect "plugin" "NCCL_PROFILER_PLUGIN=$lib/libecho-tp-recorder.so" "$(grep ^NCCL "$work/out")"
  expect "no shim" "LD_PRELOAD=unset" "$(grep ^LD_PRELOAD "$work/out")"
  CUDA_INJECTION64_PATH=/other/tool.so try 0 "CUDA_INJECTION64_PATH=/other/tool.so" profile -o "$work/files/p2" -- sh -c "$show"
  expect "kept and named" 1 "$(grep -c 'CUDA_INJECTION64_PATH is set already, to /other/tool.so: kept, so no device times' "$work/err")"

  # The baseline of ab knows nothing of us, even if our variables were there before.
  try 3 "nothing to compare" ab --policy "$work/policy.json" --metric 'x=(1)' -- sh -c "$show; echo x=1"
  expect "baseline" 6 "$(sed -n '/run 1 of 2/,/run 2 of 2/p' "$work/err" | grep -cE '^(LD_PRELOAD|ECHO_TP_[A-Z_]+)=unset$')"
  expect "other side" 2 "$(sed -n '/run 2 of 2/,$p' "$work/err" | grep -cE '^ECHO_TP_(MODE=compress|POLICY=/)')"
  LD_PRELOAD=$lib/libecho-tp-shim.so:$library ECHO_TP_POLICY=/x try 3 "nothing to compare" ab --policy "$work/policy.json" --metric 'x=(1)' -- sh -c "$show; echo x=1"
  expect "baseline of a polluted environment" "LD_PRELOAD=$library" "$(grep -m1 ^LD_PRELOAD "$work/err")"
  expect "its policy" "ECHO_TP_POLICY=unset" "$(grep -m1 ^ECHO_TP_POLICY "$work/err")"
  nothing_left environment

  # LD_PRELOAD can't hold a space: a link stands in.
  mv "$work/prefix" "$work/pre fix"
  echo_tp="$work/pre fix/bin/echo-tp"
  try 0 "libecho-tp-shim.so" run -p "$work/policy.json" -o "$work/files/r4" -- sh -c "$show"
  expect "no space in LD_PRELOAD" 0 "$(grep ^LD_PRELOAD "$work/out" | grep -c ' ')"
  expect "the loader found it" 0 "$(grep -c 'cannot be preloaded' "$work/err")"
}

case_bad_input() {
  try 125 "no-such.json" run --policy no-such.json -- touch "$work/here/started"
  printf '{"schema": "echo-tp/policy/1", "rules": [{"match": {"min_byte": 1}, "codec": {"bits": 5}}]}' >"$work/policy.json"
  try 125 "/rules/0/match: unknown key 'min_byte'; did you mean 'min_bytes'?" run --policy "$work/policy.json" -- touch "$work/here/started"
  expect "every error has a line" 2 "$(lines)"
  try 2 "/rules/0/codec/bits" policy check "$work/policy.json"
  try 2 "min_byte" ab --policy "$work/policy.json" --metric 'x=(.)' -- true
  policy
  try 0 "is valid" policy check "$work/policy.json"
  try 2 "no-such.json" policy check no-such.json

  try 2 "no-such.echoprof" show no-such.echoprof
  try 2 "no-such.echoprof" estimate no-such.echoprof
  for text in '' '{"schema": "echo-tp/run/1"}' 'not a profile at all, just a text file'; do
    printf '%s' "$text" >"$work/files/foreign"
    for command in show estimate; do
      try 2 "foreign" "$command" "$work/files/foreign"
      expect "one line" 1 "$(lines)"
    done
  done
  "$fixture" profile "$work/files/whole"
  head -c 60 "$work/files/whole" >"$work/files/nothing"
  local code=0
  "$echo_tp" show "$work/files/nothing" >/dev/null 2>"$work/err" || code=$?
  expect "truncated to nothing: 2 or 3" yes "$(if [ $code = 2 ] || [ $code = 3 ]; then echo yes; else echo $code; fi)"
  expect "one line at the end" 1 "$(tail -n 1 "$work/err" | grep -c "$work/files/nothing")"
  for command in show estimate "policy check" "estimate $work/files/whole --costs"; do
    # shellcheck disable=SC2086
    try 2 "/tmp: is a folder; expected a file" $command /tmp
  done
  try 125 "/tmp: is a folder; expected a file" run -p /tmp -- touch "$work/here/started"
  "$fixture" empty-profile "$work/files/empty"
  try 3 "holds no GPU work" show "$work/files/empty"
  try 3 "" estimate "$work/files/empty"
  try 2 "no-such-costs" estimate "$work/files/whole" --costs no-such-costs
  try 2 "--step" estimate "$work/files/whole" --step '('

  # What exists is not overwritten, and the job does not start first.
  echo precious >"$work/files/old"
  try 125 "exists already; --force overwrites it" profile -o "$work/files/old" -- touch "$work/here/started"
  try 125 "exists already" run --mode observe --report "$work/files/old" -- touch "$work/here/started"
  try 125 "is a folder" profile -o "$work/files" -- touch "$work/here/started"
  try 2 "exists already" estimate "$work/files/whole" --policy-out "$work/files/old"
  try 2 "exists already" estimate "$work/files/whole" --html "$work/files/old"
  expect "untouched" precious "$(cat "$work/files/old")"

  rm "$work/prefix/lib/echo-tp/"*
  try 125 "only the target echo-tp was built (cmake --build BUILD_FOLDER builds all)" profile -- touch "$work/here/started"
  try 125 "libecho-tp-shim.so: not there" run --policy "$work/policy.json" -- touch "$work/here/started"
  try 125 "libecho-tp-recorder.so: not there" profile -- touch "$work/here/started"
  if ! ldconfig -p 2>/dev/null | grep -q libcuda.so.1; then
    try 3 "no NVIDIA driver" bench -o "$work/files/costs"
    expect "one line" 1 "$(lines)"
  fi
  nothing_left bad_input
}

case_outputs() {
  policy
  "$fixture" profile "$work/files/p"
  cp "$work/policy.json" "$work/files/p.json"
  cp "$source/share/costs/h200-loopback-2-ranks.json" "$work/files/costs.json"
  printf '{"schema": "echo-tp/policy/1", "costs": "costs.json", "rules": []}' >"$work/files/with-costs.json"
  ln -s p.json "$work/files/link.json"
  mkfifo "$work/files/fifo"
  (cd "$work/files" && sha256sum p p.json costs.json with-costs.json) >"$work/sums"
  local f=$work/files
  local never=(-- touch "$work/here/started")
  # An input is never an output, --force or not, whatever it is called.
  try 2 "--policy-out would overwrite what PROFILE reads" estimate "$f/p" --policy-out "$f/p" --force
  try 2 "--html would overwrite what PROFILE reads" estimate "$f/p" --html "$f/../files/p" --force
  try 2 "--policy-out would overwrite what --costs reads" estimate "$f/p" --costs "$f/costs.json" --policy-out "$f/costs.json" --force
  try 2 "--json would overwrite what --policy reads" estimate "$f/p" --policy "$f/p.json" --json="$f/p.json" --force
  try 2 "--json would overwrite what the policy's costs reads" estimate "$f/p" --policy "$f/with-costs.json" --json="$f/costs.json" --force
  try 2 "--json would overwrite what PROFILE reads" show "$f/p" --json="$f/p" --force
  try 125 "--report would overwrite what --policy reads" run -p "$f/p.json" -o "$f/p.json" --force "${never[@]}"
  try 125 "--report would overwrite what --policy reads" run -p "$f/p.json" -o "$f/link.json" --force "${never[@]}"
  try 125 "--json would overwrite what the policy's costs reads" run -p "$f/with-costs.json" --json="$f/costs.json" --force "${never[@]}"
  try 2 "--json would overwrite what --policy reads" ab -p "$f/p.json" --metric 'x=(.)' --json="$f/p.json" --force "${never[@]}"
  try 125 "--output would overwrite what --cupti reads" profile --cupti "$f/p" -o "$f/p" --force "${never[@]}"
  expect "inputs untouched" "" "$(cd "$f" && sha256sum -c "$work/sums" 2>&1 | grep -v ': OK$')"

  # Two outputs are two files.
  try 2 "--policy-out and --html name the same file" estimate "$f/p" --policy-out "$f/q" --html "$f/q"
  try 125 "--report and --json name the same file" run -m observe -o "$f/r" --json="$f/./r" "${never[@]}"
  try 125 "--output and --json name the same file" profile -o "$f/r" --json="$f/r" "${never[@]}"
  try 2 "--output and --json name the same file" bench -o "$f/r" --json="$f/r"
  try 2 "only one of the two can be" estimate "$f/p" --policy "$f/p.json" --policy-out "$f/q"

  # What can't be written is told before the job, and no folder is made out of a slip of the pen.
  for command in "125 run -m observe -o" "125 profile -o"; do
    for path in "/proc/x: can't be written" "$work/here/typo/x: its folder is not there: $work/here/typo" "-: is not a file name" \
      "$f/fifo: is not a plain file" "$f/$(printf 'n%.0s' {1..300}): can't be written"; do
      # shellcheck disable=SC2086
      try ${command%% *} "$path" ${command#* } "${path%%: *}" --force "${never[@]}"
    done
  done
  try 2 "its folder is not there: $work/here/typo" estimate "$f/p" --html "$work/here/typo/page.html"
  try 2 "-: is not a file name" estimate "$f/p" --policy-out -
  try 2 "its folder is not there" show "$f/p" --json="$work/here/typo/x"
  try 2 "its folder is not there" bench -o "$work/here/typo/x"
  expect "a fifo stays one" yes "$(if [ -p "$f/fifo" ]; then echo yes; fi)"
  nothing_left outputs

  # Taken away while the job runs: an error, the job's code, and no claim that there is a report.
  mkdir "$f/gone"
  try 4 "the report can't be written: $f/gone/r" run -m observe -o "$f/gone/r" -- sh -c "rm -r '$f/gone'; exit 4"
  expect "no report claimed" 0 "$(grep -c 'report: ' "$work/err")"
  # Words after a -- are arguments; --json takes a file with = alone.
  ln -s "$f/p" ./-p
  try 0 "AllReduce" show -- -p
  try 0 '"schema": "echo-tp/summary/1"' show --json -- -p
  rm ./-p
  try 0 "" show "$f/p" --json="$f/summary.json"
  nothing_left outputs
  try 0 "rule 0: no: 1 rank is not within 2 to 64" policy explain "$f/p.json" --bytes 4MiB --ranks 1 --dtype bf16
}

# signal_case NAME WANTED_CODE: the job counts the signal and ends with its own code.
signal_case() {
  rm -f "$work/files/ready" "$work/files/count" "$work/files/report"
  setsid "$echo_tp" run --mode observe --report "$work/files/report" -- bash -c "
    trap 'echo $1 >>$work/files/count' $1
    touch $work/files/ready
    for i in \$(seq 100); do if [ -e $work/files/count ]; then break; fi; sleep 0.1; done
    sleep 0.5; exit 42" >/dev/null 2>"$work/err" </dev/null &
  local pid=$! code=0
  wait_for "$work/files/ready"
  kill "-$1" "$pid"
  wait "$pid" || code=$?
  expect "SIG$1: the job's code" 42 "$code"
  expect "SIG$1: reached the job once" 1 "$(grep -c "$1" "$work/files/count")"
  expect "SIG$1: report written" yes "$(if [ -s "$work/files/report" ]; then echo yes; fi)"
}

case_signals() {
  for name in TERM HUP USR1 USR2; do signal_case $name; done

  # An unprepared job dies of it, its children too; the profile is made all the same.
  setsid "$echo_tp" profile -o "$work/files/p" -- sh -c "'$fixture' parts; sleep 60 & echo \$! >$work/files/child; touch $work/files/go; wait" 2>"$work/err" </dev/null &
  local pid=$! code=0
  wait_for "$work/files/go"
  kill -TERM "$pid"
  wait "$pid" || code=$?
  expect "killed by SIGTERM" 143 "$code"
  expect "profile in spite of it" 1 "$(grep -c 'the profile is partial' "$work/err")"
  sleep 0.2
  expect "the job's child is gone" no "$(is_alive "$(cat "$work/files/child")")"
  nothing_left signals

  # Should echo-tp be killed outright, the job does not stay behind.
  setsid "$echo_tp" profile -o "$work/files/q" -- sh -c "echo \$\$ >$work/files/job; exec sleep 60" 2>/dev/null </dev/null &
  pid=$!
  wait_for "$work/files/job"
  sleep 0.2
  kill -KILL "$pid"
  wait "$pid" 2>/dev/null
  sleep 0.5
  expect "the job ended with echo-tp" no "$(is_alive "$(cat "$work/files/job")")"
}

case_terminal() {
  # ^C comes from the terminal, to both; the job must count it once, and echo-tp must live on to write the report.
  local code=0
  "$fixture" terminal "$work/files/ready" "$echo_tp" run --mode observe --report "$work/files/report" -- bash -c "
    trap 'echo INT >>$work/files/count' INT
    touch $work/files/ready
    for i in \$(seq 100); do if [ -e $work/files/count ]; then break; fi; sleep 0.1; done
    sleep 0.5; exit 42" >"$work/out" || code=$?
  expect "code" 42 "$code"
  expect "^C reached the job once" 1 "$(grep -c INT "$work/files/count")"
  expect "report written" yes "$(if [ -s "$work/files/report" ]; then echo yes; fi)"
  local escape=$'\033['
  policy
  NO_COLOR='' TERM=xterm "$fixture" terminal /never "$echo_tp" policy check /no/such >"$work/out"
  expect "colour on a terminal" 1 "$(grep -cF "$escape" "$work/out")"
  NO_COLOR=1 TERM=xterm "$fixture" terminal /never "$echo_tp" policy check /no/such >"$work/out"
  expect "NO_COLOR" 0 "$(grep -cF "$escape" "$work/out")"
  try 2 "no" policy check /no/such
  expect "no colour in a file" 0 "$(grep -cF "$escape" "$work/err")"
  try 2 "$escape" policy check /no/such --color always
  nothing_left terminal
}

case_profile() {
  try 0 "next: echo-tp estimate $work/files/p --policy-out policy.json" profile -o "$work/files/p" -- "$fixture" parts
  expect "nothing on standard output" "" "$(cat "$work/out")"
  expect "table" 1 "$(grep -c 'AllReduce  *16 MiB .*96' "$work/err")"
  expect "bypass and its switch" 1 "$(grep -c 'not through NCCL: .*--disable-custom-all-reduce' "$work/err")"
  try 0 "AllReduce" show "$work/files/p"
  try 0 "no collective seen: no process of the job used CUDA or NCCL" profile -o "$work/files/none" -- true
  expect "no profile" no "$(if [ -e "$work/files/none" ]; then echo yes; else echo no; fi)"
  try 134 "the job was ended by signal 6 (SIGABRT)" profile -o "$work/files/crash" -- sh -c "'$fixture' killed-parts; kill -ABRT \$\$"
  expect "processes that did not end" 1 "$(grep -c '1 of 1 processes did not end in order' "$work/err")"
  try 0 "AllReduce" show "$work/files/crash"
  try 5 "exit code 5: the profile is partial" profile -o "$work/files/fails" -- sh -c "'$fixture' parts; exit 5"
  try 0 "could" profile -o "$work/files/broken" -- sh -c "'$fixture' parts; echo rubbish >\$ECHO_TP_RECORD_DIR/x.echoprof.part; echo could"
  expect "a broken part is named" 1 "$(grep -c 'warning: .*x.echoprof.part' "$work/err")"
  try 0 "" profile --json="$work/files/summary.json" -o "$work/files/j" -- "$fixture" parts
  "$fixture" json /schema echo-tp/summary/1 <"$work/files/summary.json"
  expect "summary document" 0 $?
  try 0 "max_records\":5000" profile --max-records 5000 -o "$work/files/o" -- sh -c 'echo $ECHO_TP_RECORD_OPTIONS'
  nothing_left profile
  try 0 "profile: profile-" profile -- "$fixture" parts
  expect "default name" 1 "$(find . -name 'profile-*Z.echoprof' | grep -c .)"
}

case_run() {
  policy
  try 0 "" run --policy "$work/policy.json" --report "$work/files/r.json" --require -- "$fixture" receipts 100 90
  expect "sizes" 1 "$(grep -c '4 MiB  *200  *180' "$work/err")"
  expect "reasons" 1 "$(grep -c '20  *below_min_bytes' "$work/err")"
  expect "wire" 1 "$(grep -c 'wire: 202 MiB instead of 720 MiB, 518 MiB saved (3.56 times less)' "$work/err")"
  for pair in /totals/compressed=180 /totals/by_reason/below_min_bytes=20 /exit_code=0 /ranks_seen=2 /mode=compress "/policy/path=$work/policy.json"; do
    "$fixture" json "${pair%%=*}" "${pair#*=}" <"$work/files/r.json"
    expect "report: $pair" 0 $?
  done
  try 0 "no NCCL communicator seen" run --policy "$work/policy.json" --report "$work/files/none.json" -- true
  try 1 "--require: no call was compressed" run --policy "$work/policy.json" --report "$work/files/none2.json" --require -- true
  try 0 "NCCL reported 10 all-reduces, and echo-tp had handed over every one" run --policy "$work/policy.json" \
    --report "$work/files/covered.json" --require -- sh -c "'$fixture' receipts 100 90 && '$fixture' coverage 1 10 10"
  "$fixture" json /coverage/missed 0 <"$work/files/covered.json"
  expect "nothing missed" 0 $?
  try 1 "--require: 3 all-reduces did not pass echo-tp" run --policy "$work/policy.json" --report "$work/files/missed.json" \
    --require -- sh -c "'$fixture' receipts 100 90 && '$fixture' coverage 1 13 10"
  expect "misses are named" 1 "$(grep -c 'node0 pid 100: 3 of 13 all-reduces' "$work/err")"
  for pair in /coverage/missed=3 /coverage/nccl_all_reduces=13 /coverage/processes=1 /coverage/unwatched=0; do
    "$fixture" json "${pair%%=*}" "${pair#*=}" <"$work/files/missed.json"
    expect "report: $pair" 0 $?
  done
  try 0 "not known in 1 process" run --policy "$work/policy.json" --report "$work/files/deaf.json" --require -- \
    sh -c "'$fixture' receipts 100 90 && '$fixture' coverage 0 0 10"
  try 9 "" run --policy "$work/policy.json" --report "$work/files/none3.json" --require -- sh -c 'exit 9'
  try 0 "no all-reduce seen" run --policy "$work/policy.json" --report "$work/files/none4.json" -- "$fixture" receipts 0 0
  try 0 "" -q run --policy "$work/policy.json" --report "$work/files/quiet.json" -- "$fixture" receipts 100 90
  expect "quiet" "" "$(cat "$work/err")"
  try 0 "" run --json --policy "$work/policy.json" --report "$work/files/json.json" -- "$fixture" receipts 100 90
  "$fixture" json /schema echo-tp/run/1 <"$work/out"
  expect "--json on standard output" 0 $?
  nothing_left run
}

case_estimate() {
  "$fixture" profile "$work/files/p"
  try 0 "now, measured" estimate "$work/files/p" --policy-out "$work/files/policy.json" --html "$work/files/page.html" --json="$work/files/e.json"
  expect "modelled, and said" 1 "$(grep -c 'costs are modelled, not measured' "$work/err")"
  "$fixture" json /schema echo-tp/estimate/1 <"$work/files/e.json"
  expect "document" 0 $?
  try 0 "" policy check "$work/files/policy.json"
  expect "page: nothing from outside, no script" 0 "$(grep -ciE '<script|https?:|<link|<img|@import|url\(' "$work/files/page.html")"
  grep -qF 'cross_device_reduce_2stage&lt;&quot;&amp;&#39;&gt;&lt;/script&gt;' "$work/files/page.html"
  expect "page: the name is there, escaped" 0 $?
  if command -v xmllint >/dev/null; then
    xmllint --html --noout "$work/files/page.html" 2>&1 | grep -v 'Tag svg\|Tag rect\|Tag path\|Tag text\|Tag tspan\|^ *^\|^<\|^ *<' | grep -i error >"$work/files/faults"
    expect "page: well formed" "" "$(cat "$work/files/faults")"
  fi
  try 0 "" estimate "$work/files/p" --json
  "$fixture" json /schema echo-tp/estimate/1 <"$work/out"
  expect "--json on standard output, alone" 0 $?
  try 0 "" estimate --json "$work/files/p"
  "$fixture" json /schema echo-tp/estimate/1 <"$work/out"
  expect "--json before the profile" 0 $?

  # A shipped table of the same machine is taken by itself; one of another GPU is not.
  mkdir -p "$work/prefix/share/echo-tp/costs"
  sed 's/LINK/loopback sockets, one GPU, MPS/' >"$work/prefix/share/echo-tp/costs/a.json" <<'J'
{"schema": "echo-tp/costs/1", "environment": {"gpu": "NVIDIA H200", "link": "LINK"},
 "entries": [{"ranks": 2, "dtype": "bf16", "bytes": 4194304, "transport": "staged", "nccl_us": {"median": 1000}, "echo_us": {"median": 400}},
             {"ranks": 2, "dtype": "bf16", "bytes": 67108864, "transport": "staged", "nccl_us": {"median": 16000}, "echo_us": {"median": 6400}}]}
J
  try 0 "share/echo-tp/costs/a.json, measured on NVIDIA H200" estimate "$work/files/p"
  expect "compressed" 1 "$(grep -c 'AllReduce  *16 MiB .*compress$' "$work/out")"
  sed -i 's/H200/B200/' "$work/prefix/share/echo-tp/costs/a.json"
  try 0 "no shipped table was measured on NVIDIA H200" estimate "$work/files/p"
  try 0 "costs: $work/prefix/share/echo-tp/costs/a.json" estimate "$work/files/p" --costs "$work/prefix/share/echo-tp/costs/a.json"
  expect "a table of another GPU is warned of" 1 "$(grep -c 'cost table was measured on NVIDIA B200, the profile was recorded on NVIDIA H200' "$work/out")"
  echo '{"schema": "echo-tp/costs/1", "environment": {}, "entries": []}' >"$work/files/none.json"
  try 3 "$work/files/none.json: the cost table has no entry" estimate "$work/files/p" --costs "$work/files/none.json"

  # What was not recorded is named, and costs are no subject then.
  "$fixture" gpu-only "$work/files/gpu"
  try 0 "no collective was recorded" estimate "$work/files/gpu"
  expect "gpu only: no word of costs or GPUs" 0 "$(cat "$work/out" "$work/err" | grep -c 'costs\|which GPU\|0 ranks')"
  "$fixture" host-only "$work/files/host"
  try 3 "$work/files/host: no GPU kernel was timed" estimate "$work/files/host"
  expect "host only: one line" 1 "$(lines)"
  cat "$work/files/p" "$work/files/p" >"$work/files/twice"
  try 2 "process 1000 of host node0 is in the file twice" estimate "$work/files/twice"
  try 0 "the profile is an excerpt: 10 of 80 recorded steps" estimate "$source/share/examples/torch-training-2-ranks.echoprof" --costs "$source/share/costs/h200-loopback-2-ranks.json"
  try 0 "an excerpt of a recording of 80 steps" show "$source/share/examples/torch-training-2-ranks.echoprof"
  nothing_left estimate
}

case_ab() {
  policy
  local p=$work/policy.json
  # A job that is faster and slightly different under Echo.
  local job='if [ -n "${ECHO_TP_RUN_DIR-}" ]; then "$0" receipts 10 9; echo "loss=1.0 early"; echo "result: step_ms=10.0 loss=1.004"; else echo "result: step_ms=20.0 loss=1.000"; fi'
  try 0 "steps are 2.00x as fast with Echo" ab --policy "$p" --metric 'loss=([0-9.]+)' --tolerance 1% --json="$work/files/ab.json" -- sh -c "$job" "$fixture"
  expect "the job's output went to standard error" 0 "$(grep -c 'result:' "$work/out")"
  expect "the job's output is shown" 2 "$(grep -c 'result:' "$work/err")"
  for pair in /schema=echo-tp/ab/1 /verdict=pass /metrics/0/name=loss /metrics/0/echo/median=1.004 /step_time/gain=2.0 /runs/1/side=echo /runs/1/compressed=18 /runs/0/compressed=null; do
    "$fixture" json "${pair%%=*}" "${pair#*=}" <"$work/files/ab.json"
    expect "document: $pair" 0 $?
  done
  try 1 "fail" ab -q --policy "$p" --metric 'loss=([0-9.]+)' --tolerance 0.1% -- sh -c "$job" "$fixture"
  expect "quiet: the job is not shown" 0 "$(grep -c 'result:' "$work/err")"
  try 1 "fail" ab --policy "$p" --metric 'loss=([0-9.]+)' --tolerance 0.003 -- sh -c "$job" "$fixture"
  try 0 "pass" ab --policy "$p" --metric 'loss=([0-9.]+)' --tolerance 0.005 -- sh -c "$job" "$fixture"
  try 0 "pass" ab --policy "$p" --metric 'loss=([0-9.]+)' --tolerance 0.1% --higher-is-better -- sh -c "$job" "$fixture"
  try 3 "metric acc not found" ab --policy "$p" --metric 'acc=([0-9.]+)' --json="$work/files/missing.json" -- sh -c "$job" "$fixture"
  "$fixture" json /runs/0/exit_code 0 <"$work/files/missing.json"
  expect "runs so far are in the document" 0 $?
  try 3 "the job failed with Echo: exit code 4" ab --policy "$p" --metric 'x=([0-9])' -- sh -c 'echo x=1; if [ -n "${ECHO_TP_RUN_DIR-}" ]; then exit 4; fi'
  try 3 "nothing to compare: no all-reduce was compressed" ab --policy "$p" --metric 'x=([0-9])' -- sh -c 'if [ -n "${ECHO_TP_RUN_DIR-}" ]; then "$0" receipts 10 0; fi; echo x=1' "$fixture"
  try 2 "has no group" ab --policy "$p" --metric 'loss=[0-9.]+' -- true
  try 2 "no regular expression" ab --policy "$p" --metric '(' -- true
  try 2 "--tolerance: 'much' is neither" ab --policy "$p" --metric 'x=(.)' --tolerance much -- true
  try 2 "no-such-program: command not found" ab --policy "$p" --metric 'x=(.)' -- no-such-program
  # Three sides, two repeats: A B C, B A C; the third has the policy without compensation.
  try 0 "the same with error compensation off" ab -n 2 --without-compensation --policy "$p" --metric 'loss=([0-9.]+)' --json="$work/files/bare.json" -- sh -c \
    'if [ -n "${ECHO_TP_RUN_DIR-}" ]; then "$0" receipts 10 9; if grep -q "\"mode\": *\"none\"" "$ECHO_TP_POLICY"; then echo loss=3; else echo loss=2; fi; else echo loss=1; fi' "$fixture"
  expect "order of the runs" "without Echo,with Echo,with Echo, no compensation,with Echo,without Echo,with Echo, no compensation" \
    "$(sed -n 's/^echo-tp: run . of 6: //p' "$work/err" | paste -sd,)"
  "$fixture" json /without_compensation/metrics/0/echo/median 3.0 <"$work/files/bare.json"
  expect "without compensation" 0 $?
  "$fixture" json /metrics/0/echo/median 2.0 <"$work/files/bare.json"
  expect "with compensation" 0 $?
  nothing_left ab

  # Interrupted: no further run starts.
  setsid "$echo_tp" ab -n 50 --policy "$p" --metric 'x=(1)' -- sh -c "touch $work/files/started; sleep 60" >/dev/null 2>"$work/err" </dev/null &
  local pid=$! code=0
  wait_for "$work/files/started"
  kill -TERM "$pid"
  wait "$pid" || code=$?
  expect "interrupted" 143 "$code"
  expect "no second run" 0 "$(grep -c 'run 2 of' "$work/err")"
  nothing_left ab
}

case_documents() {
  policy
  for words in "--version --json" "doctor --json" "simulate --ranks 2 --group 128 --calls 3 --tokens 1 --json" "policy check $work/policy.json --json" "policy explain $work/policy.json --bytes 4MiB --ranks 2 --dtype bf16 --json"; do
    # shellcheck disable=SC2086
    try 0 '"schema": "echo-tp/' $words
    schema=$(sed -n 's/.*"schema": "\([^"]*\)".*/\1/p' "$work/out" | head -n 1)
    "$fixture" json /schema "$schema" <"$work/out"
    expect "document of: $words" 0 $?
  done
  try 2 '"valid": false' policy check --json /no/such
  try 0 "rule 0: matches" policy explain "$work/policy.json" --bytes 4MiB --ranks 2 --dtype bf16
  try 2 "missing: --dtype TYPE" policy explain "$work/policy.json" --bytes 4MiB --ranks 2
  try 2 "not a whole number of fp32 elements" policy explain "$work/policy.json" --bytes 6 --ranks 2 --dtype fp32
  try 0 '"min_bytes": "auto"' policy show "$work/policy.json"
  CUDA_INJECTION64_PATH=/x try 0 "another tool holds CUPTI's way in" doctor
  nothing_left documents
}

# Real documents against their schemas, all keys described.
case_schemas() {
  if ! python3 -c 'from jsonschema import Draft202012Validator' 2>/dev/null; then
    echo "SKIPPED (no python3-jsonschema)"
    exit 77
  fi
  local what
  for what in doctor simulate summary; do
    case $what in
      doctor) try 0 "" doctor --json ;;
      simulate) try 0 "" simulate --ranks 2 --group 32,64 --compensation none,smooth --calls 5 --tokens 1 --json ;;
      summary) try 0 "" show "$source/share/examples/tp-job-2-ranks.echoprof" --json ;;
    esac
    python3 - "$source/share/schemas/$what.schema.json" "$work/out" <<'P'
import json, sys
from jsonschema import Draft202012Validator
schema, document = (json.load(open(name)) for name in sys.argv[1:])
Draft202012Validator.check_schema(schema)
def close(node):
    if isinstance(node, dict):
        if "properties" in node: node["additionalProperties"] = False
        for value in list(node.values()): close(value)
close(schema)
errors = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document)]
# The judge must be able to say no.
broken = json.loads(json.dumps(document))
del broken["generator"]["version"]
if not list(Draft202012Validator(schema).iter_errors(broken)): errors.append("a missing key was not noticed")
print("\n".join(errors))
sys.exit(bool(errors))
P
    expect "$what as in its schema" 0 $?
  done
  expect "rows are there to be judged" yes "$(if grep -q '"function"' "$work/out"; then echo yes; fi)"
}

case_simulate() {
  try 2 "--ranks: '1'; expected numbers from 2 to 64" simulate --ranks 1
  try 2 "--group: '48'; expected 32, 64 or 128" simulate --group 32,48
  try 2 "--compensation: ''; expected none, owner, both, ef, smooth or drift" simulate --compensation none,
  try 2 "is not a whole number from 1 to 4096" simulate --calls 0
  try 0 "heavy-tailed activations" simulate --ranks 2 --group 32 --compensation both,drift --activations heavy-tailed --calls 8
  expect "a row each, and a column each depth" "2 7" "$(grep -c '^ *2 ' "$work/out") $(awk '/ both /{print NF}' "$work/out")"
  # The defaults answer in seconds, and say what the method is for.
  try 0 "" simulate --json
  python3 - "$work/out" <<'P'
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
grown = {(r["ranks"], r["codec"]["group"], r["compensation"]): r["accumulated_error"] for r in rows}
assert len(grown) == 36, len(grown)
for (ranks, group, mode), error in grown.items():
    assert len(error) == 8, error
    assert error[7] > 9 * error[0] if mode == "none" else True, (ranks, group, mode, error)
    assert error[7] < 1.3 * error[0] if mode in ("both", "ef") else True, (ranks, group, mode, error)
P
  expect "bounded with compensation, growing without" 0 $?
  nothing_left simulate
}

case_policy_doc() {
  local doc=$source/share/doc/policy.md schema=$source/share/schemas/policy.schema.json
  try 0 "share/doc/policy.md" policy --help
  try 0 "share/doc/policy.md" run --help
  # The example is a policy, and uses every key.
  sed -n '/^```json$/,/^```$/p' "$doc" | grep -v '^```' >"$work/files/example.json"
  try 0 "is valid" policy check "$work/files/example.json"
  if ! command -v python3 >/dev/null; then return; fi
  python3 - "$schema" "$doc" "$work/files/example.json" <<'P'
import json, re, sys
schema, example = json.load(open(sys.argv[1])), open(sys.argv[3]).read()
rows = {}
for line in open(sys.argv[2]):
    if match := re.match(r"\| `(\w+)` \| ([^|]*) \| (.*) \|$", line):
        rows[match[1]] = (match[2], match[3])
keys, wrong = {}, []
def walk(node):
    if isinstance(node, dict):
        for key, value in (node.get("properties") or {}).items():
            if isinstance(value, dict): keys.setdefault(key, value)
        for value in node.values(): walk(value)
    elif isinstance(node, list):
        for value in node: walk(value)
walk({key: value for key, value in schema.items() if key != "if"})
for key, node in keys.items():
    inside = key == "name"
    if key not in rows and not (inside and "`name`" in rows["communicator"][1]): wrong.append(f"{key}: not described")
    if f'"{key}"' not in example and key != "costs": wrong.append(f"{key}: not in the example")
    choices = node.get("enum") or (node.get("items") or {}).get("enum") or []
    text = " ".join(rows.get(key, ("", "")))
    wrong += [f"{key}: {choice} is not described" for choice in choices if str(choice) not in text]
wrong += [f"{key}: not in the schema" for key in rows if key not in keys]
print("\n".join(wrong))
sys.exit(bool(wrong))
P
  expect "every key and value of the schema is described" 0 $?
  # Defaults as the document says, by the program.
  printf '{"schema": "echo-tp/policy/1", "rules": [{}]}' >"$work/files/bare.json"
  try 0 "" policy show "$work/files/bare.json"
  python3 - "$doc" "$work/out" <<'P'
import json, re, sys
rule = json.load(open(sys.argv[2]))["rules"][0]
flat = dict(rule)
for part in ("match", "codec", "compensation", "pass"): flat.update(rule[part])
wrong, seen = [], 0
for line in open(sys.argv[1]):
    match = re.match(r"\| `(\w+)` \| `?(.*?)`?(?:, or 1 - \w)? \| ", line)
    if not match or match[1] not in flat: continue
    try: said = json.loads(match[2])
    except ValueError: continue
    seen += 1
    if said != flat[match[1]]: wrong.append(f"{match[1]}: {said} is described, {flat[match[1]]} is used")
print("\n".join(wrong), seen)
sys.exit(bool(wrong) or seen < 14)
P
  expect "defaults are as described" 0 $?
}

case_demo() {
  local code=0
  "$source/share/demo.sh" --help >"$work/out" 2>"$work/err" || code=$?
  expect "demo.sh --help" "0 1" "$code $(grep -c '^usage: share/demo.sh' "$work/out")"
  code=0
  "$source/share/demo.sh" --ranks 4 >"$work/out" 2>"$work/err" || code=$?
  expect "demo.sh with an argument" "2 1 1" "$code $(lines) $(grep -c -e "unknown argument '--ranks'" "$work/err")"
  nothing_left demo
}

case_help() {
  "$echo_tp" --help >"$work/out"
  diff "$source/tests/cli/golden/help.txt" "$work/out"
  expect "help as in golden/help.txt" 0 $?
  expect "version" "echo-tp $(sed -n 's/^project(echo-tp VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")" "$("$echo_tp" --version)"
  # Options of the program, its help and the manual are the same.
  local command manual
  manual=$(sed 's/\\-/-/g; s/\\f[A-Z]//g' "$source/share/man/echo-tp.1")
  try 0 "torch.profiler" profile --help
  for command in $("$echo_tp" --list-commands); do
    "$echo_tp" "$command" --list-options | sort >"$work/files/listed"
    "$echo_tp" "$command" --help | sed -n '/^Options:/,/^[A-Z][a-z ]*:$/p' | grep -oE '^ +(-[a-z], )?--[a-z-]+' | grep -oE -- '--?[a-z-]+' | sort >"$work/files/helped"
    diff "$work/files/listed" "$work/files/helped"
    expect "$command: options and help" 0 $?
    for section in Examples\\? "Exit codes"; do
      expect "$command: help has $section" 1 "$("$echo_tp" "$command" --help | grep -c "^$section:")"
    done
    sed -n "/^.SS \"echo-tp $command /,/^.S[SH] /p;/^.SH OPTIONS OF ALL/,/^.SH SIGNALS/p" <<<"$manual" | grep -oE -- '(^|[ "])--?[a-z][a-z-]*' | grep -oE -- '-.*' | sort -u >"$work/files/manual"
    expect "$command: options missing from the manual" "" "$(comm -23 <(sort -u "$work/files/listed") "$work/files/manual" | paste -sd' ')"
  done
  expect "help COMMAND" "$("$echo_tp" run --help)" "$("$echo_tp" help run)"
  if command -v groff >/dev/null; then
    expect "the manual has no faults" "" "$(groff -man -Tutf8 -ww -z "$source/share/man/echo-tp.1" 2>&1)"
  fi
  # Completion in bash: commands, options, and nothing of ours after --.
  local found
  found=$(PATH=$work/prefix/bin:$PATH bash -c 'source "$0"; COMP_WORDS=(echo-tp es); COMP_CWORD=1; _echo_tp; echo "${COMPREPLY[*]}"; COMP_WORDS=(echo-tp run --po); COMP_CWORD=2; _echo_tp; echo "${COMPREPLY[*]}"; COMP_WORDS=(echo-tp run -- --po); COMP_CWORD=3; _echo_tp; echo "${COMPREPLY[*]}"' "$source/share/completions/echo-tp.bash")
  expect "completion" "estimate|--policy" "$(paste -sd'|' <<<"$found")"
}

"case_$case"
if [ "$failures" -gt 0 ]; then
  echo "$failures failures"
  exit 1
fi
