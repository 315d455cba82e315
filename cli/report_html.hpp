// SPDX-License-Identifier: Apache-2.0
// REPORT HTML: an estimate as one page: no script, no network, everything inside. Names out of the job are
// escaped. Pure.
#pragma once

#include <string>
#include <string_view>

#include "profiles/estimate.hpp"

namespace echotp {

/// `text` as HTML text or attribute value: the five special characters escaped, the rest as plain() leaves
/// it.
std::string html_escaped(std::string_view text, std::size_t limit = 400);

std::string estimate_html(const Estimate& estimate);

}  // namespace echotp
