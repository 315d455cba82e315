// SPDX-License-Identifier: Apache-2.0
// Compares the preload library's own declarations with NCCL's header, where there is one: same number of
// arguments, same size and kind of each. A wrong one would corrupt the job's arguments.
#include <doctest/doctest.h>
#include <nccl.h>

#include <cstddef>
#include <type_traits>

extern "C" {
#include "shim/preload.h"
}

namespace {

template <class A, class B>
constexpr bool kAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>&& std::is_class_v<A> ==
                                  std::is_class_v<B>;

template <class A, class B>
struct SameCall : std::false_type {};
template <class R, class... A, class Q, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SameCall<R(A...), Q(B...)>
    : std::bool_constant<(kAlike<A, B> && ...) && sizeof(R) == sizeof(Q)> {
};

#define SAME(name) static_assert(SameCall<decltype(nccl##name), name##Function>::value, #name)
SAME(CommInitRank);
SAME(CommInitRankConfig);
SAME(CommInitAll);
SAME(CommFinalize);
SAME(CommDestroy);
SAME(CommAbort);
SAME(CommGetAsyncError);
SAME(GroupStart);
SAME(GroupEnd);
SAME(AllReduce);
SAME(Broadcast);
SAME(Bcast);
SAME(Reduce);
SAME(AllGather);
SAME(ReduceScatter);
SAME(Send);
SAME(Recv);
#if NCCL_VERSION_CODE >= 21801
SAME(CommSplit);
#endif
#if NCCL_VERSION_CODE >= 22203
SAME(GroupSimulateEnd);
#endif
#if NCCL_VERSION_CODE >= 22304
SAME(CommInitRankScalable);
#endif
#if NCCL_VERSION_CODE >= 22703
SAME(CommShrink);
static_assert(offsetof(ncclConfig_t, commName) == 48, "where the preload library reads the name");
#endif
#if NCCL_VERSION_CODE >= 22803
SAME(AlltoAll);
SAME(Gather);
SAME(Scatter);
#endif
#if NCCL_VERSION_CODE >= 22807
SAME(CommRevoke);
#endif
#if NCCL_VERSION_CODE >= 22902
SAME(CommGrow);
#endif
#if NCCL_VERSION_CODE >= 22907
SAME(CommSuspend);
#endif

}  // namespace

TEST_CASE("constants and layout that the preload library relies on") {
  const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  CHECK(config.magic == 0xcafebeefu);
  CHECK(offsetof(ncclConfig_t, size) == 0);
  CHECK(offsetof(ncclConfig_t, version) == 12);
  CHECK(offsetof(ncclConfig_t, blocking) == 16);
  CHECK(config.version == NCCL_VERSION_CODE);
  CHECK(sizeof(ncclUniqueId) == sizeof(NcclUniqueId));
  CHECK(static_cast<int>(ncclSystemError) == kNcclSystemError);
  CHECK(static_cast<int>(ncclInProgress) == kNcclInProgress);
}
