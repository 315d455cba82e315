#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every shell script of the project passes shellcheck. Usage: shellcheck_test.sh SHELLCHECK; 77 when there is none.
set -u
cd "$(dirname "$0")/../.." || exit 1
if ! [ -x "${1-}" ]; then
  echo "SKIPPED (no shellcheck)"
  exit 77
fi
mapfile -t scripts < <(find .ci share tests -type f \( -name '*.sh' -o -path .ci/run \) | sort)
echo "${#scripts[@]} scripts"
[ ${#scripts[@]} -ge 5 ] && "$1" -x -e SC2016 "${scripts[@]}"
