// SPDX-License-Identifier: Apache-2.0
// NVTX injection: fills the function tables that NVTX offers to a tool. Every shared object that uses NVTX
// has tables of its own, so both functions are called several times, from any thread.
#pragma once

#include <cstdint>

namespace echotp::recorder {

/// Takes over ranges, domains and strings. `get_export_table` is what NVTX passes to
/// InitializeInjectionNvtx2. False when the tables are not what this recorder knows.
bool fill_nvtx_tables(const void* (*get_export_table)(std::uint32_t));

/// Takes over payloads. `module_info` is NVTX's nvtxExtModuleInfo_t. False for other extensions than
/// payloads.
bool fill_nvtx_extension(void* module_info);

}  // namespace echotp::recorder
