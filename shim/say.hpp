// SPDX-License-Identifier: Apache-2.0
// One line on the job's stderr, tagged with the rank when it is known (rank >= 0).
#pragma once

namespace echotp {

void say(int rank, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace echotp
