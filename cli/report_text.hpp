// SPDX-License-Identifier: Apache-2.0
// REPORT TEXT: what a person reads on the terminal, one function a document. Pure: they return the text.
#pragma once

#include <optional>
#include <string>

#include "profiles/ab_compare.hpp"
#include "profiles/estimate.hpp"
#include "profiles/summary.hpp"
#include "shim/costs.hpp"

namespace echotp {

std::string summary_text(const ProfileSummary& summary);
std::string estimate_text(const Estimate& estimate, bool unicode);
/// What kind of number an estimate's result is, by the weakest evidence in it.
std::string prediction_name(Evidence evidence);
/// What the time of a free transfer is the limit of.
std::string free_transfer_text(const Estimate& estimate);
std::string ab_text(const AbReport& report);
std::string costs_text(const CostTable& table);

}  // namespace echotp
