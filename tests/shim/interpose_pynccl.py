# SPDX-License-Identifier: Apache-2.0
# A Python user of NCCL in the manner of inference servers: ctypes binds a whole list of functions at load, one missing
# name would make NCCL unusable. Usage: interpose_pynccl.py LIBRARY
import ctypes
import sys


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
}

library = ctypes.CDLL(sys.argv[1])
bound = {}
for name, arguments in FUNCTIONS.items():
    function = getattr(library, name)
    function.restype = ctypes.c_int
    function.argtypes = arguments
    bound[name] = function


def check(result):
    if result != 0:
        sys.exit(f"NCCL error {result}")


unique_id, comm = UniqueId(), pointer()
check(bound["ncclGetUniqueId"](ctypes.byref(unique_id)))
check(bound["ncclCommInitRank"](ctypes.byref(comm), 2, unique_id, 1))
check(bound["ncclGroupStart"]())
check(bound["ncclAllReduce"](4096, 8192, 1001, 9, 0, comm, None))
check(bound["ncclGroupEnd"]())
check(bound["ncclBroadcast"](4096, 8192, 1002, 9, 0, comm, None))
check(bound["ncclCommDestroy"](comm))
