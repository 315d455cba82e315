// SPDX-License-Identifier: Apache-2.0
// The table after `echo-tp run`. Pure.
#pragma once

#include <string>

#include "shim/run_report.hpp"

namespace echotp {

/// Calls by message size, reasons of forwarding, bytes on the wire; empty if the job made no all-reduce.
std::string run_text(const RunReport& report);

}  // namespace echotp
