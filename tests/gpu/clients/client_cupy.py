# SPDX-License-Identifier: Apache-2.0
"""CuPy's own binding of NCCL, which it opens from its wheel or the toolkit."""
import struct

import client_common as common

try:
    import cupy
    from cupy.cuda import nccl
except ImportError as error:
    common.skip(f"no CuPy with NCCL: {error}")


def main():
    rank, ranks, local = common.place()
    cupy.cuda.Device(local).use()
    raw = common.agree(rank, lambda: struct.pack("128b", *nccl.get_unique_id()))
    comm = nccl.NcclCommunicator(ranks, struct.unpack("128b", raw), rank)
    stream = cupy.cuda.Stream(non_blocking=True)
    worst = 0.0
    for number in range(common.ROUNDS):
        data = cupy.asarray(common.values(rank, number), dtype=cupy.float32)
        cupy.cuda.Device().synchronize()
        comm.allReduce(data.data.ptr, data.data.ptr, data.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        stream.synchronize()
        worst = max(worst, common.check(data.get().tolist(), number, ranks))
    comm.destroy()
    common.done("cupy", rank, worst)


main()
