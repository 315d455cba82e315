#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains the PyTorch job with 2 and with 4 ranks, records the inputs of the all-reduces of the last step, forward and
# backward, and runs every codec and mode over them. One GPU is enough; nothing is downloaded.
#
# usage: codec_study.sh STUDY OUT [OPTION of tp_torch.py...]
#   STUDY  echo-tp-codec-study of a build
#   OUT    folder, made if it is not there: codec-study-tp<ranks>-<direction>.json are the results,
#          codec-study-tp<ranks>-<direction>.txt the tables, tp<ranks>/ the recordings (some hundred MB)
# STUDY_RANKS="2 4" says which numbers of ranks; STUDY_ELEMENTS=N limits the elements of an all-reduce that are used.
set -eu

if [ $# -lt 2 ]; then
  sed -n '5,10s/^# \{0,1\}//p' "$0" >&2
  exit 64
fi
study=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
shift 2
here=$(cd "$(dirname "$0")" && pwd)
options=(--layers 24 --hidden 512 --intermediate 1408 --batch 1 --steps 200 "$@")

cd "$out" # the commands that the results quote name no folder of this machine

for ranks in ${STUDY_RANKS:-2 4}; do
  "$here/../../share/launch-ranks.sh" "$ranks" -- python3 "$here/../jobs/tp_dump.py" --dump-allreduce "tp$ranks" --mode train "${options[@]}"
done
for ranks in ${STUDY_RANKS:-2 4}; do
  for direction in forward backward; do
    name=codec-study-tp$ranks-$direction
    "$study" "tp$ranks" --direction $direction ${STUDY_ELEMENTS:+--elements "$STUDY_ELEMENTS"} --json "$name.json" >"$name.txt"
    echo "$out/$name.json"
  done
done
