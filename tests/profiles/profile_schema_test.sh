#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every line that the recorder writes is valid under share/schemas/profile.schema.json, and the schema refuses what it should.
# Usage: profile_schema_test.sh SCENARIO RECORDER FAKE_CUPTI SCHEMA; 77 without python3-jsonschema or zstd.
set -u
if ! command -v zstd >/dev/null || ! python3 -c 'import jsonschema; jsonschema.Draft202012Validator' 2>/dev/null; then
  echo "SKIPPED (no zstd or no python3-jsonschema)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for what in eager capture hostile nvtx-only; do
  ECHO_TP_RECORD_DIR=$work ECHO_TP_RECORD_OPTIONS="{\"cupti\":\"$3\"}" CUDA_INJECTION64_PATH=$2 NVTX_INJECTION64_PATH=$2 \
    NCCL_PROFILER_PLUGIN=$2 "$1" "$what" || exit 1
done
zstd -q -dc "$work"/*.part >"$work/lines" || exit 1
python3 - "$4" "$work/lines" <<'P'
import json, sys
from jsonschema import Draft202012Validator
schema = json.load(open(sys.argv[1]))
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)
seen = set()
for line in open(sys.argv[2], encoding="utf-8"):
    document = json.loads(line)
    seen |= set(document)
    for error in validator.iter_errors(document):
        sys.exit(f"{line[:200]}\n{error.json_path}: {error.message}")
wanted = {"schema", "process", "names", "comm", "device", "api", "sync", "calls", "links", "ranges", "update", "end"}
if not wanted <= seen:
    sys.exit(f"never written: {wanted - seen}")
for bad in ({"schema": "echo-tp/policy/1"}, {"process": {"epoch_ns": 5}}, {"comm": {"hash": "12"}}, {"names": {"add": []}},
            {"calls": {"t": 0, "start": 1, "dur": 1, "id": [1], "thread": 1}},
            {"device": {"t": 0, "start": [1], "dur": -1, "kind": 0, "name": 0, "device": 0, "stream": 0, "corr": [1]}}, {}):
    if validator.is_valid(bad):
        sys.exit(f"the schema accepts {bad}")
print("lines of", len(seen), "kinds")
P
