#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job from nothing: installs what is missing, builds, then, with a GPU: bench, profile, estimate, run and ab on the
# bundled C++ job with two ranks. Without a GPU: estimate on the bundled profiles. Needs no network where everything is installed.
# ECHO_TP_BUILD_DIR: build folder (build/demo). ECHO_TP_DEMO_DIR: results (build/demo-results, replaced).
set -u

case ${1-} in
  '') ;;
  -h | --help)
    cat <<'H'
usage: share/demo.sh

Goes through echo-tp's main job from nothing: installs what is missing, builds, then, with a GPU: bench, profile, estimate,
run and ab on the bundled C++ job with two ranks. Without a GPU: estimate on the bundled profiles. Takes a few minutes.

Environment:
  ECHO_TP_BUILD_DIR  build folder (default: build/demo)
  ECHO_TP_DEMO_DIR   results (default: build/demo-results); replaced

Exit codes: 0; 1 a step failed; 2 bad usage.
H
    exit 0
    ;;
  *)
    echo "share/demo.sh: unknown argument '$1'; it takes none but --help" >&2
    exit 2
    ;;
esac

cd "$(dirname "$0")/.." || exit 1
if ! [ -e CMakeLists.txt ]; then
  echo "share/demo.sh builds echo-tp: run it in a source tree" >&2
  exit 1
fi
build=${ECHO_TP_BUILD_DIR:-$PWD/build/demo}
results=${ECHO_TP_DEMO_DIR:-$PWD/build/demo-results}

title() { printf '\n=== %s\n' "$*"; }
show() { # the command as one can type it, then its work
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}
must() {
  show "$@" || {
    local code=$?
    echo "share/demo.sh: the step above failed with $code" >&2
    exit 1
  }
}

title "Install what is missing"
tests/scripts/install-missing.sh || exit 1
echo "all there"

architecture=$(tests/scripts/gpu-architecture.sh)
settings=()
targets=(echo-tp)
if [ -n "$architecture" ]; then
  title "Build, for this machine's GPU alone (compute capability $architecture; the release preset builds for all)"
  settings+=("-DECHO_TP_CUDA=ON" "-DECHO_TP_CUDA_ARCHITECTURES=$architecture")
  targets+=(echo-tp-shim echo-tp-engine echo-tp-recorder echo-tp-bench-worker tp-job)
else
  title "Build the command line (no GPU found: nvidia-smi lists none)"
fi
must cmake --preset release -B "$build" "${settings[@]}" --log-level=NOTICE
must cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}"
echo_tp=$build/bin/echo-tp
must "$echo_tp" --version

rm -rf "$results"
mkdir -p "$results"

if [ -z "$architecture" ]; then
  title "Estimate from the bundled profiles, which were recorded on real jobs"
  shopt -s nullglob
  costs=(share/costs/*.json)
  profiles=(share/examples/*.echoprof)
  if [ ${#profiles[@]} -eq 0 ] || [ ${#costs[@]} -eq 0 ]; then
    echo "share/demo.sh: no profile in share/examples or no cost table in share/costs" >&2
    exit 1
  fi
  for profile in "${profiles[@]}"; do
    # estimate finds the shipped cost table (share/costs) that was measured on a machine like the profile's.
    must "$echo_tp" estimate "$profile" --policy-out "$results/$(basename "$profile" .echoprof).policy.json"
  done
  title "Done: estimates only. On a machine with a GPU this script also measures, profiles, runs and compares."
  exit 0
fi

job=(share/launch-ranks.sh 2 -- "$build/bin/tp-job" --preset qwen3-8b --layers 4 --tokens 8192 --steps 10)

title "Will it work here?"
must "$echo_tp" doctor

title "Measure: NCCL's all-reduce against Echo's, by message size"
must "$echo_tp" bench --ranks 2 --sizes 1MiB,4MiB,16MiB,64MiB --output "$results/costs.json"

title "Profile the job: decoder blocks of Qwen3-8B's shape, two ranks, messages of 64 MiB"
must "$echo_tp" profile -o "$results/job.echoprof" -- "${job[@]}"

title "Estimate: what would Echo give this job?"
must "$echo_tp" estimate "$results/job.echoprof" --costs "$results/costs.json" --policy-out "$results/policy.json"

title "Run the same job with Echo, and compare the ranks' bytes after every all-reduce"
must "$echo_tp" run --policy "$results/policy.json" --report "$results/run.json" --require -- "${job[@]}" --verify-ranks --check-finite

title "Compare: the job without and with Echo"
must "$echo_tp" ab --policy "$results/policy.json" --metric 'checksum=([0-9.e+-]+)' --tolerance 5% --json="$results/ab.json" -- "${job[@]}"

title "Done. Results are in $results"
