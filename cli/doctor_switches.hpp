// SPDX-License-Identifier: Apache-2.0
// DOCTOR SWITCHES: variables of this environment that change what echo-tp sees, and the frameworks' own ways
// around NCCL: the switch that turns each off, and what that costs. echo-tp never changes any of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace echotp {

struct SwitchFinding {
  std::string name;       // of the variable or the option
  std::string framework;  // whose; empty: of echo-tp, NCCL or CUDA
  std::string value;      // empty: not set, or an option, which can't be seen from here
  std::string effect;
  std::string cost;     // of turning the way around NCCL off; empty: none, or no such way
  bool active = false;  // it changes what echo-tp sees or does, as set now
  bool bypass = false;  // all-reduces that do not reach NCCL
};

/// `variable` gives a variable's value, empty if it is not set.
std::vector<SwitchFinding> probe_switches(const std::function<std::string(const char*)>& variable);

}  // namespace echotp
