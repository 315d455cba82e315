// SPDX-License-Identifier: Apache-2.0
// The table of `echo-tp bench`.
#include "cli/report_text.hpp"
#include "cli/text.hpp"
#include "shim/policy.hpp"

namespace echotp {
namespace {

std::string spread(const std::optional<CostSpread>& time) {
  if (!time) return "-";
  std::string out = show_time(time->median);
  if (time->p10 && time->p90) out += " (" + show_time(*time->p10) + " to " + show_time(*time->p90) + ")";
  return out;
}

// GB/s = 1e9 bytes a second: bytes / (us * 1000).
std::string bandwidth(const std::optional<CostSpread>& time, double bytes) {
  return time ? show_number(bytes / (time->median * 1e3)) : "-";
}

}  // namespace

std::string costs_text(const CostTable& table) {
  const CostEnvironment& machine = table.environment;
  std::string out = "  " + plain(machine.gpu.value_or("unknown GPU")) + ", NCCL " +
                    plain(machine.nccl.value_or("unknown")) + ", " +
                    plain(machine.link.value_or("unknown link")) + "\n";
  Table rows({"all-reduce of", "type", ">ranks", ">NCCL", ">Echo", ">faster", ">algbw NCCL", ">algbw Echo",
              ">busbw NCCL", ">busbw Echo", "compensation", "same bytes"});
  for (const CostEntry& entry : table.entries) {
    const double bytes = static_cast<double>(entry.bytes);
    const double bus_bytes = bytes * 2 * (entry.ranks - 1) / entry.ranks;
    rows.row(
        {show_bytes(entry.bytes), data_type_name(entry.dtype), std::to_string(entry.ranks),
         spread(entry.nccl_us), spread(entry.echo_us),
         entry.nccl_us && entry.echo_us ? show_factor(entry.nccl_us->median / entry.echo_us->median) : "-",
         bandwidth(entry.nccl_us, bytes), bandwidth(entry.echo_us, bytes),
         bandwidth(entry.nccl_us, bus_bytes), bandwidth(entry.echo_us, bus_bytes),
         compensation_mode_name(entry.compensation.mode),
         entry.bytes_equal ? (*entry.bytes_equal ? "yes" : "NO") : "-"});
  }
  return out + rows.text() +
         "  times: median (10% to 90%) of the slowest rank; bandwidths in GB/s of the uncompressed message, "
         "busbw = algbw * 2(P-1)/P\n";
}

}  // namespace echotp
