#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains as tp_torch.py does and records the inputs of the all-reduces of the last step, for the codec study.

    tp_dump.py --dump-allreduce DIR [options of tp_torch.py --mode train]

Writes DIR/<direction>-rank<p>.bf16, raw [calls][elements], for both directions, and DIR/allreduce.json, which says what
they hold. Start one process a rank with torchrun or share/launch-ranks.sh.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tp_torch  # noqa: E402


class Recorder(tp_torch.Exchange):
    """Keeps the inputs of the all-reduces while it is told a direction."""

    def __init__(self, verify: bool) -> None:
        super().__init__(verify)
        self.direction = ""
        self.inputs: dict[str, list[torch.Tensor]] = {"forward": [], "backward": []}
        Recorder.last = self

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.direction:
            self.inputs[self.direction].append(tensor.detach().to("cpu", torch.bfloat16, copy=True).contiguous())
        return super().all_reduce(tensor)


def record_last_step(steps: int) -> None:
    """Makes tp_torch record from the loss of the last step on."""
    loss_of = tp_torch.loss_of
    seen = 0

    def recorded_loss_of(model, tokens):
        nonlocal seen
        seen += 1
        Recorder.last.direction = "forward" if seen == steps else ""
        loss = loss_of(model, tokens)
        Recorder.last.direction = "backward" if seen == steps else ""
        return loss

    tp_torch.Exchange = Recorder
    tp_torch.loss_of = recorded_loss_of


def write(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.rename(path)


def dump(directory: Path, rank: int, world: int, command: list[str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    described = {}
    for direction, inputs in Recorder.last.inputs.items():
        if not inputs or any(tensor.shape != inputs[0].shape for tensor in inputs):
            sys.exit(f"tp_dump: the {direction} all-reduces of the last step are missing or differ in shape")
        raw = b"".join(tensor.view(torch.int16).numpy().tobytes() for tensor in inputs)
        write(directory / f"{direction}-rank{rank}.bf16", raw)
        described[direction] = {"calls": len(inputs), "elements": inputs[0].numel()}
    if rank == 0:
        document = {
            "schema": "echo-tp/allreduce-dump/1",
            "ranks": world,
            "hidden": inputs[0].shape[-1],
            "dtype": "bf16",
            "directions": described,
            "command": command,
            "torch": torch.__version__,
        }
        write(directory / "allreduce.json", json.dumps(document, indent=2).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], add_help=False)
    parser.add_argument("--dump-allreduce", type=Path, required=True, metavar="DIR")
    own, rest = parser.parse_known_args()
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    sys.argv = [sys.argv[0], *rest]
    arguments = tp_torch.parse_arguments()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if arguments.mode != "train" or arguments.self_check:
        sys.exit("tp_dump: only --mode train is recorded")
    if world < 2:
        sys.exit("tp_dump: at least two ranks are needed, or there is no all-reduce to record")
    record_last_step(arguments.steps)
    destroy = dist.destroy_process_group
    dist.destroy_process_group = lambda: None  # the recording is written while the others still run
    tp_torch.main()
    dist.barrier()
    dump(own.dump_allreduce, rank, world, command)
    dist.barrier()
    destroy()


if __name__ == "__main__":
    main()
