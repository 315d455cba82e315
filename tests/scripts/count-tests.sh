#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adds up ctest's JUnit files: names of the skipped and failed tests, then `N passed, N failed, N skipped`. A test that
# could not be started counts as failed. Exit code: 0 if at least one test passed and none failed. Arguments: the files.
set -u
awk '
  function attribute(line, name) {
    if (!match(line, " " name "=\"[^\"]*\"")) return ""
    return substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
  }
  /<testcase / {
    name = attribute($0, "name"); status = attribute($0, "status")
    if (status == "run") ++passed
    else if (status == "fail") { ++failed; print "failed: " name }
    else if (status == "disabled") { ++skipped; print "skipped: " name " (disabled)" }
  }
  /<skipped / && status == "notrun" {
    if ($0 ~ /SKIP_RETURN_CODE|SKIP_REGULAR_EXPRESSION/) { ++skipped; print "skipped: " name }
    else { ++failed; print "failed: " name " (" attribute($0, "message") ")" }
  }
  END {
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit !(passed > 0 && failed == 0)
  }' "$@" /dev/null
