// SPDX-License-Identifier: Apache-2.0
// What tests tell the fake CUPTI to record. Times are nanoseconds; ids are free, 0 means none.
#pragma once

#include <cupti.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void fake_cupti_kernel(const char* name, uint64_t start, uint64_t end, uint32_t stream, uint32_t correlation,
                       uint64_t node);
void fake_cupti_copy(uint64_t bytes, uint64_t start, uint64_t end, uint32_t stream, uint32_t correlation);
void fake_cupti_api(int driver, uint32_t id, uint64_t start, uint64_t end, uint32_t thread,
                    uint32_t correlation);
void fake_cupti_event(uint32_t stream, uint32_t event, uint64_t sync, uint32_t correlation);
void fake_cupti_wait(uint32_t stream, uint32_t event, uint64_t sync, uint64_t start, uint64_t end,
                     uint32_t correlation);
void fake_cupti_device(uint32_t id, const char* name);
void fake_cupti_drop(size_t count);
/// Fires the driver launch callback: entering or leaving cuLaunchKernelEx.
void fake_cupti_launch(const char* kernel, uint32_t correlation, int enter);
/// Fires the graph callback: a node was created, or cloned from `origin`.
void fake_cupti_graph_node(uint64_t node, uint64_t origin);

#ifdef __cplusplus
}
#endif
