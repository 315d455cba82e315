// SPDX-License-Identifier: Apache-2.0
// Policy document <-> Policy. Reading checks everything, resolves the path of the cost table and the
// thresholds "auto", and computes the hash that ranks compare.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shim/policy.hpp"
#include "shim/result.hpp"

namespace echotp {

/// Threshold of "auto" in a policy without a cost table.
inline constexpr std::int64_t kAutoMinBytesWithoutCosts = 1 << 20;

/// Reads a policy file. `costs` is resolved relative to the file. The error names file, line, column and JSON
/// pointer, and how many more errors there are.
Result<Policy> read_policy(const std::string& path);

/// The same for a text; `file_label` is what errors show, `base_dir` what `costs` is relative to ("" is the
/// current one).
Result<Policy> parse_policy(std::string_view text, const std::string& file_label,
                            const std::string& base_dir);

/// All errors of a policy file, at most kMaxJsonErrors, in document order; empty: the policy is valid.
std::vector<Error> check_policy(const std::string& path);

/// The document of a policy, every key written out, in a fixed order; ends with a newline. Reading it gives
/// the same policy: "auto" stays "auto", `costs` is the absolute path.
std::string policy_json(const Policy& policy);

/// Hash over all that changes what is done: thresholds as resolved; not notes, not the path of the cost
/// table.
std::uint64_t policy_hash(const Policy& policy);

}  // namespace echotp
