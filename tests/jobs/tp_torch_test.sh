#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The PyTorch job against itself unsplit: logits, decoding and gradients, two ranks, both architectures; with NCCL where
# there is a GPU, else with gloo. Usage: tp_torch_test.sh; 77 without PyTorch and transformers.
set -u

here=$(cd "$(dirname "$0")" && pwd)
if ! command -v python3 >/dev/null || ! python3 -c 'import torch, transformers' 2>/dev/null; then
  echo "SKIPPED (python3 has no PyTorch or no transformers)"
  exit 77
fi
backend=gloo
if [ -n "$("$here/../scripts/gpu-architecture.sh")" ]; then backend=nccl; fi
for arch in qwen3 llama3; do
  ECHO_TP_LAUNCH_ANYWAY=1 timeout 300 "$here/../../share/launch-ranks.sh" 2 -- python3 "$here/tp_torch.py" --arch "$arch" \
    --backend "$backend" --self-check --hidden 64 --layers 2 --heads 4 --kv-heads 2 --intermediate 128 --batch 2 \
    --sequence 32 || exit 1
done
