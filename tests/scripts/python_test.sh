#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python programs beside the jobs are valid Python. Usage: python_test.sh PYTHON; 77 when there is none.
set -u
if ! [ -x "${1-}" ]; then
  echo "SKIPPED (no Python 3)"
  exit 77
fi
for program in "$(dirname "$0")"/../jobs/*.py "$(dirname "$0")"/../gpu/clients/*.py; do
  "$1" -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$program" || exit 1
done
