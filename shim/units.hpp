// SPDX-License-Identifier: Apache-2.0
// Sizes with units, as people write and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace echotp {

/// What parse_bytes reads, for messages.
inline constexpr const char* kSizeForm =
    "bytes, or a whole number of KiB, MiB, GiB (1024s) or KB, MB, GB (1000s), such as 4MiB";

/// Bytes of "1MiB", "256KiB", "4MB", "512B" or "512"; nothing if it is none of these or beyond 63 bits.
std::optional<std::int64_t> parse_bytes(std::string_view text);

/// "1 MiB", "256 KiB", "1000 B": exact, in the largest unit that divides it.
std::string format_bytes(std::int64_t bytes);

}  // namespace echotp
