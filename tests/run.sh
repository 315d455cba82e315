#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds and passes the tests. Last line: `N passed, N failed, N skipped`.
# ECHO_TP_PRESET: configure preset (dev). ECHO_TP_BUILD_DIR: build folder (build/PRESET). ECHO_TP_JOBS: parallel jobs.
set -u

cd "$(dirname "$0")/.." || exit 1
preset=${ECHO_TP_PRESET:-dev}
build=${ECHO_TP_BUILD_DIR:-$PWD/build/$preset}
jobs=${ECHO_TP_JOBS:-$(nproc)}

give_up() { # no test ran
  echo "tests/run.sh: $1" >&2
  echo "0 passed, 0 failed, 0 skipped"
  exit 1
}

tests/scripts/install-missing.sh || give_up "packages are missing"

settings=()
architecture=$(tests/scripts/gpu-architecture.sh)
if [ "$preset" = dev ] && [ -n "$architecture" ]; then settings+=("-DECHO_TP_CUDA_ARCHITECTURES=$architecture"); fi
cmake --preset "$preset" -B "$build" "${settings[@]}" || give_up "configuring failed"
cmake --build "$build" --parallel "$jobs" || give_up "building failed"

# Tests on the GPU have it to themselves: one at a time, after the others.
rm -f "$build/tests.xml" "$build/gpu-tests.xml"
code=0
ctest --test-dir "$build" -LE '^gpu$' --parallel "$jobs" --output-on-failure --no-tests=error \
  --output-junit "$build/tests.xml" </dev/null || code=1
ctest --test-dir "$build" -L '^gpu$' --output-on-failure --no-tests=ignore \
  --output-junit "$build/gpu-tests.xml" </dev/null || code=1

results=()
for file in "$build/tests.xml" "$build/gpu-tests.xml"; do
  if [ -e "$file" ]; then results+=("$file"); fi
done
if [ ${#results[@]} -eq 0 ]; then give_up "ctest wrote no results"; fi
tests/scripts/count-tests.sh "${results[@]}" || code=1
exit "$code"
