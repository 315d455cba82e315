# SPDX-License-Identifier: Apache-2.0
"""JAX over several processes: XLA opens NCCL by name and makes its own communicators."""
import os

import client_common as common

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # ranks may share a GPU
try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    common.skip(f"no JAX: {error}")


def main():
    rank, ranks, local = common.place()
    port = int(os.environ["MASTER_PORT"])
    jax.distributed.initialize(f"127.0.0.1:{port}", ranks, rank, local_device_ids=[local])
    if jax.default_backend() != "gpu":
        common.skip("JAX has no GPU backend here")
    reduce = jax.pmap(lambda x: jax.lax.psum(x, "ranks"), axis_name="ranks")
    worst = 0.0
    for number in range(common.ROUNDS):
        data = jnp.asarray([common.values(rank, number)], dtype=jnp.float32)
        worst = max(worst, common.check(jax.device_get(reduce(data))[0].tolist(), number, ranks))
    common.done("jax", rank, worst)
    jax.distributed.shutdown()


main()
