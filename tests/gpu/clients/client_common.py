# SPDX-License-Identifier: Apache-2.0
"""What the clients of clients.sh share: their place in the job, inputs that every rank can compute, and the check.

Inputs are whole numbers of -8 to 8. The bound is that of tests/gpu/fuzz/fuzz_plan.hpp: a sender's residual stays below
8/7, the owner's below a seventh of what it adds up, and a correction is at most a residual.
"""
import os
import sys
import time

ELEMENTS = 1 << 18  # of fp32: 1 MiB, above the policy's min_bytes
ROUNDS = 8


def place():
    """(rank, ranks, local rank), as launch-ranks.sh sets them."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])


def values(rank, round_number, count=ELEMENTS):
    """What `rank` puts into a round's all-reduce: `count` floats."""
    start = (rank * 7919 + round_number * 104729) % 1000003
    return [float((start + i * 31) * 2654435761 % 4294967296 % 17 - 8) for i in range(count)]


def agree(rank, make):
    """Rank 0's bytes `make()`, on all ranks, through the file that the launcher named."""
    path = os.environ["ECHO_TP_RENDEZVOUS"]
    if rank == 0:
        data = make()
        with open(path + ".part", "wb") as file:
            file.write(data)
        os.rename(path + ".part", path)
        return data
    for _ in range(6000):
        if os.path.exists(path):
            with open(path, "rb") as file:
                return file.read()
        time.sleep(0.02)
    sys.exit("rank 0 has not published its id after two minutes")


def check(results, round_number, ranks):
    """Ends the job where a result is beyond the bound."""
    owner = ranks * (8 + 8 / 7) / 7
    bound = 2.04 * (ranks * 8 / 7 + owner)
    inputs = [values(rank, round_number) for rank in range(ranks)]
    worst = 0.0
    for i, got in enumerate(results):
        error = abs(got - sum(column[i] for column in inputs))
        if not error <= bound:
            sys.exit(f"round {round_number}, element {i}: error {error} beyond the bound of {bound}")
        worst = max(worst, error)
    return worst


def done(name, rank, worst):
    print(f"client {name}: rank {rank}, {ROUNDS} rounds, largest error {worst:.3f}", flush=True)


def skip(why):
    print(f"SKIPPED ({why})", flush=True)
    sys.exit(77)
