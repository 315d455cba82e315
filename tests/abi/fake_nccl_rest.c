/* SPDX-License-Identifier: Apache-2.0
 * The functions of NCCL that fake_nccl.c does not act out: only there, from the version on that brought them.
 * Whoever calls one gets 4000, which is no result of NCCL. */
#ifndef FAKE_NCCL_VERSION
#error "which NCCL?"
#endif

#define STUB(name)                                                                         \
  __attribute__((visibility("default"))) int pnccl##name(void);                            \
  __attribute__((visibility("default"), weak, alias("pnccl" #name))) int nccl##name(void); \
  int pnccl##name(void) {                                                                  \
    return 4000;                                                                           \
  }

STUB(GetErrorString)
STUB(GetLastError)
STUB(RedOpCreatePreMulSum)
STUB(RedOpDestroy)

#if FAKE_NCCL_VERSION >= 21901
STUB(CommDeregister)
STUB(MemAlloc)
STUB(MemFree)
#endif

#if FAKE_NCCL_VERSION >= 22403
STUB(ResetDebugInit)
#endif

#if FAKE_NCCL_VERSION >= 22703
STUB(CommWindowDeregister)
STUB(CommWindowRegister)
#endif

#if FAKE_NCCL_VERSION >= 22803
STUB(DevCommCreate)
STUB(DevCommDestroy)
#endif

#if FAKE_NCCL_VERSION >= 22902
STUB(CommGetUniqueId)
STUB(CommQueryProperties)
STUB(PutSignal)
STUB(Signal)
STUB(WaitSignal)
STUB(WinGetUserPtr)
#endif

#if FAKE_NCCL_VERSION >= 22907
STUB(CommMemStats)
STUB(CommResume)
#endif

#if FAKE_NCCL_VERSION >= 23004
STUB(ParamBind)
STUB(ParamDumpAll)
STUB(ParamGet)
STUB(ParamGetAllParameterKeys)
STUB(ParamGetI16)
STUB(ParamGetI32)
STUB(ParamGetI64)
STUB(ParamGetI8)
STUB(ParamGetParameter)
STUB(ParamGetStr)
STUB(ParamGetU16)
STUB(ParamGetU32)
STUB(ParamGetU64)
STUB(ParamGetU8)
#endif
