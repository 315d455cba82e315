// SPDX-License-Identifier: Apache-2.0
// The table of `echo-tp bench`.
#include <algorithm>

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

std::string rate(const std::optional<double>& gbs) {
  return gbs ? show_number(*gbs) : "-";
}

std::string compensation(const Compensation& how) {
  const std::string mode = compensation_mode_name(how.mode);
  const bool by_element = how.mode == CompensationMode::kOwner || how.mode == CompensationMode::kBoth;
  return by_element ? mode + " " + state_format_name(how.state) : mode;
}

std::string bits(const Codec& codec) {
  return std::to_string(codec.first_leg_bits) + "+" + std::to_string(codec.bits);
}

bool is_loaded(const CostEntry& entry) {
  return entry.background != "idle";
}

}  // namespace

std::string costs_text(const CostTable& table) {
  const CostEnvironment& machine = table.environment;
  std::string out = "  " + plain(machine.gpu.value_or("unknown GPU")) + ", NCCL " +
                    plain(machine.nccl.value_or("unknown")) + ", " +
                    plain(machine.link.value_or("unknown link")) + "\n";
  const bool loaded = std::any_of(table.entries.begin(), table.entries.end(), is_loaded);
  if (loaded)
    out += "  background: " + plain(table.background_path.value_or("unknown")) + ", " +
           rate(table.background_alone_gbs) + " GB/s alone\n";
  std::vector<std::string> head = {"all-reduce of", "type",        ">ranks",      "transport", "compensation",
                                   "bits",          ">NCCL",       ">Echo",       ">faster",   ">algbw NCCL",
                                   ">algbw Echo",   ">busbw NCCL", ">busbw Echo", "same bytes"};
  if (loaded) head.insert(head.end(), {">background by NCCL", ">by Echo"});
  Table rows(head);
  for (const CostEntry& entry : table.entries) {
    const double bytes = static_cast<double>(entry.bytes);
    const double bus_bytes = bytes * 2 * (entry.ranks - 1) / entry.ranks;
    std::vector<std::string> row = {
        show_bytes(entry.bytes),
        data_type_name(entry.dtype),
        std::to_string(entry.ranks),
        plain(entry.transport),
        compensation(entry.compensation),
        bits(entry.codec),
        spread(entry.nccl_us),
        spread(entry.echo_us),
        entry.nccl_us && entry.echo_us ? show_factor(entry.nccl_us->median / entry.echo_us->median) : "-",
        bandwidth(entry.nccl_us, bytes),
        bandwidth(entry.echo_us, bytes),
        bandwidth(entry.nccl_us, bus_bytes),
        bandwidth(entry.echo_us, bus_bytes),
        entry.bytes_equal ? (*entry.bytes_equal ? "yes" : "NO") : "-"};
    if (loaded) row.insert(row.end(), {rate(entry.background_nccl_gbs), rate(entry.background_echo_gbs)});
    rows.row(row);
  }
  return out + rows.text() +
         "  times: median (10% to 90%) of the slowest rank; bits: to the owner + from it; bandwidths in GB/s "
         "of the "
         "uncompressed message, busbw = algbw * 2(P-1)/P\n";
}

}  // namespace echotp
