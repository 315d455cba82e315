// SPDX-License-Identifier: Apache-2.0
// Clock offsets of processes from the ends of collectives.
#include "profiles/clock.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace echotp {
namespace {

constexpr std::int64_t kPiece_ns = 10'000'000'000;
constexpr std::int64_t kWarnFrom_ns = 20'000;
constexpr std::size_t kLeastPerPiece = 8;  // fewer collectives than that: one offset for all

struct Difference {
  std::int64_t time_ns;    // end at the process itself
  std::int64_t offset_ns;  // ahead of the reference
  bool impossible;         // one left before the other came
};

std::vector<ClockAlignment::Piece> pieces_of(std::vector<Difference>& differences) {
  std::sort(differences.begin(), differences.end(),
            [](const Difference& l, const Difference& r) { return l.time_ns < r.time_ns; });
  std::vector<ClockAlignment::Piece> pieces;
  std::vector<std::int64_t> offsets, times;
  const auto close = [&] {
    pieces.push_back({quantile_of(times, 0.5), quantile_of(offsets, 0.5)});
    offsets.clear();
    times.clear();
  };
  for (const Difference& difference : differences) {
    if (offsets.size() >= kLeastPerPiece && difference.time_ns - times.front() > kPiece_ns) close();
    offsets.push_back(difference.offset_ns);
    times.push_back(difference.time_ns);
  }
  if (pieces.empty() || offsets.size() >= kLeastPerPiece) close();
  return pieces;
}

}  // namespace

std::int64_t aligned_ns(const ClockAlignment& alignment, std::int32_t process, std::int64_t time_ns) {
  if (process < 0 || static_cast<std::size_t>(process) >= alignment.pieces.size()) return time_ns;
  const auto& pieces = alignment.pieces[process];
  if (pieces.empty()) return time_ns;
  if (time_ns <= pieces.front().time_ns) return time_ns - pieces.front().offset_ns;
  if (time_ns >= pieces.back().time_ns) return time_ns - pieces.back().offset_ns;
  const auto after = std::lower_bound(
      pieces.begin(), pieces.end(), time_ns,
      [](const ClockAlignment::Piece& piece, std::int64_t at) { return piece.time_ns < at; });
  const auto before = after - 1;
  const double share = static_cast<double>(time_ns - before->time_ns) /
                       static_cast<double>(std::max<std::int64_t>(1, after->time_ns - before->time_ns));
  return time_ns - before->offset_ns -
         std::llround(share * static_cast<double>(after->offset_ns - before->offset_ns));
}

ClockAlignment align_clocks(const Trace& trace, const DeviceTimes& times, const CollectiveSet& set) {
  const std::size_t processes = trace.processes.size();
  ClockAlignment out;
  out.pieces.resize(processes);
  out.offset_ns.assign(processes, 0);
  std::vector<std::int64_t> arrivals(processes, 0);
  for (const Rendezvous& rendezvous : set.rendezvous) {
    for (const Arrival& arrival : rendezvous.arrivals) ++arrivals[arrival.process];
  }
  if (processes < 2) return out;
  const auto reference =
      static_cast<std::int32_t>(std::max_element(arrivals.begin(), arrivals.end()) - arrivals.begin());
  std::vector<bool> reached(processes, false);
  reached[reference] = true;
  // A process that shares no communicator with the reference is reached over one that does.
  for (bool progress = true; progress;) {
    progress = false;
    std::vector<std::vector<Difference>> differences(processes);
    for (const Rendezvous& rendezvous : set.rendezvous) {
      if (!rendezvous.barrier) continue;
      const auto known = std::find_if(rendezvous.arrivals.begin(), rendezvous.arrivals.end(),
                                      [&](const Arrival& arrival) { return reached[arrival.process]; });
      if (known == rendezvous.arrivals.end()) continue;
      const std::int64_t start = aligned_ns(out, known->process, times.start_ns[known->op]);
      const std::int64_t end = aligned_ns(out, known->process, times.end_ns[known->op]);
      for (const Arrival& arrival : rendezvous.arrivals) {
        if (reached[arrival.process]) continue;
        const std::int64_t other_start = times.start_ns[arrival.op], other_end = times.end_ns[arrival.op];
        differences[arrival.process].push_back(
            {other_end, other_end - end, other_start > end || start > other_end});
      }
    }
    for (std::size_t process = 0; process < processes; ++process) {
      auto& found = differences[process];
      if (reached[process] || found.empty()) continue;
      reached[process] = progress = true;
      std::vector<std::int64_t> offsets;
      std::size_t impossible = 0;
      for (const Difference& difference : found) {
        offsets.push_back(difference.offset_ns);
        impossible += difference.impossible ? 1 : 0;
      }
      out.offset_ns[process] = quantile_of(offsets, 0.5);
      const bool same_host = trace.processes[process].host == trace.processes[reference].host;
      const bool broken = 2 * impossible > found.size();
      if (!same_host || broken) out.pieces[process] = pieces_of(found);
      if (same_host && std::abs(out.offset_ns[process]) > kWarnFrom_ns) {
        out.warnings.push_back("process " + std::to_string(trace.processes[process].pid) +
                               ": collectives end " +
                               std::to_string(std::abs(out.offset_ns[process]) / 1000) +
                               (out.offset_ns[process] > 0 ? " us after" : " us before") +
                               " those of process " + std::to_string(trace.processes[reference].pid) +
                               " on the same host" + (broken ? "; clock corrected" : ""));
      }
    }
  }
  return out;
}

void apply_alignment(const Trace& trace, const ClockAlignment& alignment, DeviceTimes& times) {
  for (std::size_t i = 0; i < trace.device_ops.size(); ++i) {
    const std::int32_t process = trace.device_ops[i].process;
    if (times.start_ns[i] < 0 || process < 0 || alignment.pieces[process].empty()) continue;
    times.start_ns[i] = aligned_ns(alignment, process, times.start_ns[i]);
    times.end_ns[i] = std::max(times.start_ns[i], aligned_ns(alignment, process, times.end_ns[i]));
  }
}

}  // namespace echotp
