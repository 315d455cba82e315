// SPDX-License-Identifier: Apache-2.0
// The only host entry to the staged kernels. Asynchronous on `stream`; no allocation, no synchronisation,
// capturable.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/params.hpp"

namespace echotp {

/// Loads every staged kernel on the current device, so that no later launch has to (lazy loading may
/// synchronise the context while a peer waits). Call once a device, outside capture.
cudaError_t load_staged_kernels() noexcept;

/// Phase 1: rounds the tiles of the other owners into args.outbox and updates the sender's state.
cudaError_t launch_quantise(const StagedArgs& args, cudaStream_t stream) noexcept;

/// Phase 2: sums this rank's tiles in fp32 in rank order (own partial unrounded), compensates, rounds once
/// more into row `rank` of args.gathered, and writes the decoded tiles to args.recv.
cudaError_t launch_reduce(const StagedArgs& args, cudaStream_t stream) noexcept;

/// Phase 3: decodes the tiles of the other owners from args.gathered into args.recv.
cudaError_t launch_decode(const StagedArgs& args, cudaStream_t stream) noexcept;

}  // namespace echotp
