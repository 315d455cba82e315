#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the tools and headers that the build needs and this machine lacks, with apt-get. With everything in place it
# touches no network. Arguments: further Debian packages, as PROGRAM=PACKAGE (installed when PROGRAM is not on PATH).
set -u

missing=()
need_program() { if ! command -v "$1" >/dev/null; then missing+=("$2"); fi; }
need_header() {
  if ! command -v g++ >/dev/null || ! echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1; then missing+=("$2"); fi
}

need_program cmake cmake
need_program ninja ninja-build
need_program g++ g++
need_header CLI/CLI.hpp libcli11-dev
need_header nlohmann/json.hpp nlohmann-json3-dev
need_header doctest/doctest.h doctest-dev
need_header zstd.h libzstd-dev
for extra in "$@"; do need_program "${extra%%=*}" "${extra#*=}"; done

if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
echo "missing packages: ${missing[*]}"
if ! command -v apt-get >/dev/null; then
  echo "no apt-get here: install them (these are Debian's and Ubuntu's names) and try again" >&2
  exit 1
fi
root=()
if [ "$(id -u)" -ne 0 ]; then root=(sudo); fi
export DEBIAN_FRONTEND=noninteractive
if "${root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null 2>&1; then exit 0; fi
if "${root[@]}" apt-get update -q && "${root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"; then exit 0; fi
echo "apt-get could not install: ${missing[*]}" >&2
exit 1
