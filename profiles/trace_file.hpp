// SPDX-License-Identifier: Apache-2.0
// FILES: reads a profile (.echoprof, or a part file of one process) into a Trace, writes one, merges the
// parts of a job. The format is described in share/doc/profile-format.md. A file cut by a crash is readable
// up to the cut; anything that is not a profile, or is damaged elsewhere, is refused with one line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiles/trace.hpp"
#include "shim/result.hpp"

namespace echotp {

/// What a reader accepts; a file beyond it is refused, so that a hostile file cannot take all memory.
struct ReadLimits {
  std::int64_t max_rows = 50'000'000;         // of all kinds together
  std::int64_t max_name_bytes = 256LL << 20;  // of all names together
  std::int64_t max_frame_bytes = 64LL << 20;  // uncompressed
};

/// Reads `path`, joins kernels to the collectives that launched them and CUPTI's event records to the CUDA
/// calls. Fails with kNotFound (no such file) or kBadInput (foreign, empty, another version, damaged,
/// hostile), naming the file.
Result<Trace> read_profile(const std::string& path, const ReadLimits& limits = {});

/// Writes `trace` to a temporary name beside `path`, then renames it. Fails with kSystem, or kBadInput for a
/// trace whose indices point nowhere.
Status write_profile(const Trace& trace, const std::string& path);

struct MergeSummary {
  std::int32_t processes = 0;         // written to the profile
  std::int32_t idle_processes = 0;    // left out: they used no stream, made no call and had nothing to say
  std::int32_t incomplete = 0;        // written, but the process did not end in order
  std::int64_t truncated_frames = 0;  // cut by a crash
  std::int64_t bytes = 0;             // size of the profile
  std::vector<std::string> problems;  // part files that could not be read, one line each
};

/// Streams the part files of one job into the profile `out_path` (temporary name, then rename). Parts that
/// cannot be read are reported in MergeSummary::problems. Fails with kInsufficient when there is no readable
/// part, kSystem otherwise.
Result<MergeSummary> merge_profile(const std::vector<std::string>& parts,
                                   const std::vector<std::string>& command, const std::string& out_path);

/// The part of `trace` that starts in [from_ns, to_ns) of CLOCK_REALTIME, all indices kept valid. Calls stay
/// when they start inside or one of their kernels does.
Trace trim_trace(const Trace& trace, std::int64_t from_ns, std::int64_t to_ns);

}  // namespace echotp
