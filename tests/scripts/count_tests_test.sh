#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# count-tests.sh on made-up ctest results: every outcome that ctest writes, and the exit code.
set -u
count=$(dirname "$0")/count-tests.sh
file=$(mktemp)
trap 'rm -f "$file"' EXIT
failures=0

expect() { # $1: wanted exit code, $2: wanted output; standard input: results
  local output code
  cat >"$file"
  output=$("$count" "$file")
  code=$?
  if [ "$output" != "$2" ] || [ "$code" != "$1" ]; then
    printf 'FAILED: expected %s <%s>, got %s <%s>\n' "$1" "$2" "$code" "$output"
    failures=1
  fi
}

expect 0 $'skipped: needs a GPU\nskipped: off (disabled)\n2 passed, 0 failed, 2 skipped' <<'XML'
<testsuite name="x"
	tests="4"
	skipped="2">
	<testcase name="one" classname="one" time="0.1" status="run">
	<testcase name="two" classname="two" time="0.1" status="run">
		<system-out>&lt;testcase name="not one" status="run"&gt;</system-out>
	<testcase name="needs a GPU" classname="needs a GPU" time="0" status="notrun">
		<skipped message="SKIP_RETURN_CODE=77"/>
	<testcase name="off" classname="off" time="0" status="disabled">
XML
expect 1 $'failed: bad\n1 passed, 1 failed, 0 skipped' <<'XML'
	<testcase name="good" classname="good" time="0.1" status="run">
	<testcase name="bad" classname="bad" time="0.1" status="fail">
		<failure message=""/>
XML
expect 1 $'failed: unbuilt (Unable to find executable)\n1 passed, 1 failed, 0 skipped' <<'XML'
	<testcase name="good" classname="good" time="0.1" status="run">
	<testcase name="unbuilt" classname="unbuilt" time="0" status="notrun">
		<skipped message="Unable to find executable"/>
XML
expect 1 '0 passed, 0 failed, 0 skipped' <<'XML'
<testsuite name="x" tests="0">
XML
exit "$failures"
