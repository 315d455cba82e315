#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole way from a training job to a codec study at toy size, on the CPU. Usage: codec_study_test.sh STUDY; 77
# without PyTorch and transformers.
set -u

here=$(cd "$(dirname "$0")" && pwd)
if ! command -v python3 >/dev/null || ! python3 -c 'import torch, transformers' 2>/dev/null; then
  echo "SKIPPED (python3 has no PyTorch or no transformers)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CUDA_VISIBLE_DEVICES='' ECHO_TP_LAUNCH_ANYWAY=1 STUDY_RANKS=2 timeout 300 "$here/codec_study.sh" "$1" "$work/out" --backend gloo \
  --layers 2 --hidden 64 --heads 4 --kv-heads 2 --intermediate 128 --batch 1 --sequence 64 --steps 2 >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log"; exit 1; }
python3 - "$work/out" <<'P'
import json, sys
for direction in ("forward", "backward"):
    d = json.load(open(f"{sys.argv[1]}/codec-study-tp2-{direction}.json"))
    assert d["schema"] == "echo-tp/codec-study/1" and d["direction"] == direction and d["recording"]["ranks"] == 2
    assert sys.argv[1] not in json.dumps(d), "names a folder of this machine"
    calls = d["recording"]["directions"][direction]["calls"]
    modes = {o["compensation"]["mode"] for o in d["options"]}
    assert modes == {"none", "owner", "both", "drift"}, modes
    by_name = {o["name"]: o for o in d["options"]}
    for o in d["options"]:
        assert len(o["sqnr_db"]) == calls and all(x is not None for x in o["sqnr_db"]), o["name"]
    assert by_name["int8 g32, none"]["sqnr_db"][0] > by_name["int4 g32, none"]["sqnr_db"][0] + 15
P
