# SPDX-License-Identifier: Apache-2.0
"""A client in the manner of inference servers: ctypes opens NCCL and binds the whole list of functions at once.
Needs nothing but Python. Usage: client_pynccl.py [NCCL_LIBRARY]"""
import ctypes
import ctypes.util
import glob
import os
import sys

import client_common as common


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
FUNCTIONS = {
    "ncclGetVersion": [ctypes.POINTER(number)],
    "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
    "ncclCommInitRank": [ctypes.POINTER(pointer), number, UniqueId, number],
    "ncclAllReduce": [pointer, pointer, size, number, number, pointer, pointer],
    "ncclReduce": [pointer, pointer, size, number, number, number, pointer, pointer],
    "ncclAllGather": [pointer, pointer, size, number, pointer, pointer],
    "ncclReduceScatter": [pointer, pointer, size, number, number, pointer, pointer],
    "ncclSend": [pointer, size, number, number, pointer, pointer],
    "ncclRecv": [pointer, size, number, number, pointer, pointer],
    "ncclBroadcast": [pointer, pointer, size, number, number, pointer, pointer],
    "ncclCommDestroy": [pointer],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclCommWindowRegister": [pointer, pointer, size, ctypes.POINTER(pointer), number],
    "ncclCommWindowDeregister": [pointer, pointer],
}
OPTIONAL = {"ncclCommWindowRegister", "ncclCommWindowDeregister"}  # since NCCL 2.27
FLOAT32, SUM, TO_DEVICE, TO_HOST = 7, 0, 1, 2


def open_first(names, what):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return common.skip(f"no {what}")


def main():
    rank, ranks, local = common.place()
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    wheels = [path for root in sys.path for path in glob.glob(os.path.join(root, "nvidia", "*", "lib", "lib*.so.*"))]

    def candidates(stem, versions):
        plain = [f"lib{stem}.so{version}" for version in versions]
        here = [path for path in wheels if os.path.basename(path).startswith(f"lib{stem}.so")]
        return plain + [os.path.join(home, "lib64", name) for name in plain] + here

    cuda = open_first(candidates("cudart", [".13", ".12", ""]), "CUDA runtime")
    nccl = open_first(sys.argv[1:2] or candidates("nccl", [".2"]), "NCCL")
    for name, arguments in FUNCTIONS.items():
        if name in OPTIONAL and not hasattr(nccl, name):
            continue
        function = getattr(nccl, name)
        function.restype, function.argtypes = number, arguments
    for name, arguments in {
        "cudaSetDevice": [number],
        "cudaMalloc": [ctypes.POINTER(pointer), size],
        "cudaMemcpy": [pointer, pointer, size, number],
        "cudaStreamCreate": [ctypes.POINTER(pointer)],
        "cudaStreamSynchronize": [pointer],
        "cudaDeviceSynchronize": [],
    }.items():
        getattr(cuda, name).argtypes = arguments

    def call(library, name, *arguments):
        code = getattr(library, name)(*arguments)
        if code != 0:
            sys.exit(f"{name} gave {code}")

    call(cuda, "cudaSetDevice", local)

    def new_id():
        made = UniqueId()
        call(nccl, "ncclGetUniqueId", ctypes.byref(made))
        return bytes(made)

    unique = UniqueId.from_buffer_copy(common.agree(rank, new_id))
    comm, stream, memory = pointer(), pointer(), pointer()
    call(nccl, "ncclCommInitRank", ctypes.byref(comm), ranks, unique, rank)
    call(cuda, "cudaStreamCreate", ctypes.byref(stream))
    host = (ctypes.c_float * common.ELEMENTS)()
    call(cuda, "cudaMalloc", ctypes.byref(memory), ctypes.sizeof(host))
    worst = 0.0
    for number_of_round in range(common.ROUNDS):
        host[:] = common.values(rank, number_of_round)
        call(cuda, "cudaMemcpy", memory, host, ctypes.sizeof(host), TO_DEVICE)
        call(cuda, "cudaDeviceSynchronize")
        call(nccl, "ncclAllReduce", memory, memory, common.ELEMENTS, FLOAT32, SUM, comm, stream)
        call(cuda, "cudaStreamSynchronize", stream)
        call(cuda, "cudaMemcpy", host, memory, ctypes.sizeof(host), TO_HOST)
        worst = max(worst, common.check(host, number_of_round, ranks))
    call(nccl, "ncclCommDestroy", comm)
    common.done("pynccl", rank, worst)


main()
