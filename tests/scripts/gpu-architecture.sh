#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the architectures of this machine's GPUs as CMake wants them ("90" or "80;90"); nothing without a GPU.
set -u
if ! command -v nvidia-smi >/dev/null; then exit 0; fi
env -u LD_PRELOAD nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
  sed -n 's/^\([0-9][0-9]*\)\.\([0-9]\)$/\1\2/p' | sort -un | paste -sd ';'
