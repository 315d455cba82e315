// SPDX-License-Identifier: Apache-2.0
// BENCH CONFIRM: holds a fresh cost table against the shim's receipts: was each candidate what its entries
// say? Pure.
#pragma once

#include <string>
#include <vector>

#include "shim/receipt.hpp"
#include "shim/result.hpp"

namespace echotp {

/// The document with the times of those entries taken out, and why_not put in, whose communicator did not
/// compress, or took another transport than the entry's; without receipts everything stays. Lines for people
/// are added to `doubts`, each once a candidate.
Result<std::string> confirmed_costs(const std::string& document, const std::vector<Receipt>& receipts,
                                    std::vector<std::string>& doubts);

}  // namespace echotp
