// SPDX-License-Identifier: Apache-2.0
// Builder of the timeline: one function a kind of edge, then the topological order and the residuals.
#include "profiles/timeline.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

namespace echotp {
namespace {

constexpr std::int64_t kTolerance_ns = 20'000;    // of clocks: what contradicts a dependency by more is none
constexpr std::int64_t kOwnSyncCost_ns = 10'000;  // most that a wait costs by itself
constexpr std::int64_t kNear_ns = 20'000;         // an inferred cause lies at most so long before
constexpr std::int64_t kUnexplained_ns = 5'000;   // waits below are launch noise
constexpr std::int64_t kUnexplainedHost_ns = 20'000;  // the same where launches are known
constexpr std::int64_t kPinFrom_ns = 10'000;
constexpr std::int64_t kHandOffGap_ns = 50'000;
// A later hand-off counts when the thread's own idle time is this much longer: PyTorch's autograd thread
// starts 0.3 to 1 ms after the forward's last launch, and idles for the rest of the step.
constexpr std::int64_t kHandOffRatio = 4;
constexpr std::int64_t kQueueDepth = 900;  // operations pending when a launch can be blocked
constexpr double kBlockedFactor = 10;      // a blocked launch lasts that many medians
constexpr std::uint32_t kUnknownStream = 0xffffffff;
constexpr std::size_t kMostPending = 64;
constexpr std::int32_t kWalkBack = 64;
constexpr std::size_t kKinds = 9;  // of HostApiKind

struct RawEdge {
  std::uint32_t to;
  Edge edge;
};

using Stream = std::uint64_t;  // process and stream

class Builder {
 public:
  Builder(const Trace& trace, const DeviceTimes& times, const ClockAlignment& alignment,
          const Launches& launches, const CollectiveSet& set)
      : trace_(trace), times_(times), alignment_(alignment), launches_(launches), set_(set) {}

  Timeline run() {
    number_points();
    sort_ops();
    add_durations();
    add_stream_order();
    if (!hosts_.empty()) {
      measure_host_costs();
      add_host_order();
      add_launches_and_events();
      add_synchronisation();
    }
    add_meetings();
    add_inferred();
    order_points();
    explain();
    return std::move(out_);
  }

 private:
  std::uint32_t op_start(std::int32_t op) const { return static_cast<std::uint32_t>(2 * op); }
  std::uint32_t op_end(std::int32_t op) const { return static_cast<std::uint32_t>(2 * op + 1); }
  std::uint32_t host_start(std::int32_t api) const {
    return static_cast<std::uint32_t>(out_.host_base + 2 * static_cast<std::size_t>(api));
  }
  std::uint32_t host_end(std::int32_t api) const { return host_start(api) + 1; }
  std::int64_t seen(std::uint32_t point) const { return out_.observed_ns[point]; }
  static Stream stream_of(std::int32_t process, std::uint32_t stream) {
    return (static_cast<Stream>(process) << 32) | stream;
  }

  void number_points() {
    out_.ops = trace_.device_ops.size();
    out_.host_base = 2 * out_.ops;
    out_.meet_base = out_.host_base + 2 * trace_.host_apis.size();
    out_.observed_ns.assign(out_.meet_base + set_.rendezvous.size(), -1);
    for (std::size_t i = 0; i < out_.ops; ++i) {
      out_.observed_ns[2 * i] = times_.start_ns[i];
      out_.observed_ns[2 * i + 1] = times_.end_ns[i];
    }
    for (std::size_t i = 0; i < trace_.host_apis.size(); ++i) {
      const HostApi& api = trace_.host_apis[i];
      if (api.process < 0 || !launches_.host_known(api.process) || api.start_ns <= 0 ||
          api.end_ns < api.start_ns)
        continue;
      const auto at = static_cast<std::int32_t>(i);
      out_.observed_ns[host_start(at)] = aligned_ns(alignment_, api.process, api.start_ns);
      out_.observed_ns[host_end(at)] = aligned_ns(alignment_, api.process, api.end_ns);
      hosts_.push_back(at);
    }
    // In host order of each process, over its threads.
    std::sort(hosts_.begin(), hosts_.end(), [&](std::int32_t l, std::int32_t r) {
      const std::int32_t left = trace_.host_apis[l].process, right = trace_.host_apis[r].process;
      if (left != right) return left < right;
      return seen(host_start(l)) != seen(host_start(r)) ? seen(host_start(l)) < seen(host_start(r)) : l < r;
    });
    explained_.assign(out_.ops, std::numeric_limits<std::int64_t>::min());
    raw_.reserve(3 * out_.ops + 3 * hosts_.size());
  }

  // An edge, unless the times contradict it; returns whether it was added.
  bool add(std::uint32_t from, std::uint32_t to, std::int64_t lag, EdgeKind kind) {
    const std::int64_t gap = seen(to) - seen(from);
    if (gap < -kTolerance_ns) {
      ++out_.quality.contradicted_edges;
      return false;
    }
    lag = std::clamp<std::int64_t>(lag, 0, std::max<std::int64_t>(gap, 0));
    raw_.push_back({to, {from, kind, lag}});
    if (to < out_.host_base && to % 2 == 0)
      explained_[to / 2] = std::max(explained_[to / 2], seen(from) + lag);
    return true;
  }

  void sort_ops() {
    for (std::size_t i = 0; i < out_.ops; ++i) {
      if (times_.start_ns[i] >= 0) by_start_.push_back(static_cast<std::int32_t>(i));
    }
    const auto earlier = [&](std::int32_t l, std::int32_t r) {
      const DeviceOp &left = trace_.device_ops[l], &right = trace_.device_ops[r];
      if (left.process != right.process) return left.process < right.process;
      return times_.start_ns[l] != times_.start_ns[r] ? times_.start_ns[l] < times_.start_ns[r] : l < r;
    };
    if (!std::is_sorted(by_start_.begin(), by_start_.end(), earlier))
      std::sort(by_start_.begin(), by_start_.end(), earlier);
    by_end_ = by_start_;
    std::sort(by_end_.begin(), by_end_.end(), [&](std::int32_t l, std::int32_t r) {
      const DeviceOp &left = trace_.device_ops[l], &right = trace_.device_ops[r];
      if (left.process != right.process) return left.process < right.process;
      return times_.end_ns[l] != times_.end_ns[r] ? times_.end_ns[l] < times_.end_ns[r] : l < r;
    });
    const std::size_t processes = trace_.processes.size();
    first_op_.assign(processes + 1, 0);
    for (const std::int32_t op : by_start_) ++first_op_[trace_.device_ops[op].process + 1];
    for (std::size_t i = 0; i < processes; ++i) first_op_[i + 1] += first_op_[i];
  }

  void add_durations() {
    for (const std::int32_t op : by_start_) {
      // Ends of matched collectives hang on their rendezvous instead.
      const std::int32_t meeting = set_.rendezvous_of_op[op];
      if (meeting >= 0 && joins(set_.rendezvous[meeting], op)) continue;
      add(op_start(op), op_end(op), times_.end_ns[op] - times_.start_ns[op], EdgeKind::kDuration);
    }
  }

  // A rank that left well before the last one came did not take part in the barrier: a wrong match or clock.
  bool joins(const Rendezvous& rendezvous, std::int32_t op) const {
    return rendezvous.barrier && times_.end_ns[op] >= rendezvous.last_arrival_ns - kTolerance_ns;
  }

  void add_stream_order() {
    std::unordered_map<Stream, std::int32_t> last;
    for (const std::int32_t op : by_start_) {
      const DeviceOp& it = trace_.device_ops[op];
      const auto [at, fresh] = last.try_emplace(stream_of(it.process, it.stream), op);
      if (fresh) continue;
      const std::int32_t before = at->second;
      if (times_.start_ns[op] >= times_.end_ns[before]) {
        add(op_end(before), op_start(op), 0, EdgeKind::kStream);
      } else {
        add(op_start(before), op_start(op), times_.start_ns[op] - times_.start_ns[before],
            EdgeKind::kOverlap);
        if (times_.end_ns[op] >= times_.end_ns[before])
          add(op_end(before), op_end(op), 0, EdgeKind::kOverlap);
      }
      at->second = op;
    }
  }

  // Latencies that are always there: of launches, of returning from a wait, of a wait with nothing to do.
  void measure_host_costs() {
    std::array<std::vector<std::int64_t>, kKinds> durations, latencies;
    for (const std::int32_t api : hosts_) {
      durations[static_cast<std::size_t>(trace_.host_apis[api].kind)].push_back(seen(host_end(api)) -
                                                                                seen(host_start(api)));
    }
    for (const std::int32_t op : by_start_) {
      const std::int32_t api = launches_.api_of_op[op];
      if (api < 0 || seen(host_start(api)) < 0) continue;
      latencies[static_cast<std::size_t>(trace_.host_apis[api].kind)].push_back(
          std::max<std::int64_t>(0, times_.start_ns[op] - seen(host_start(api))));
    }
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      own_cost_[kind] = std::min(kOwnSyncCost_ns, quantile_of(durations[kind], 0.1));
      median_duration_[kind] = quantile_of(durations[kind], 0.5);
      launch_latency_[kind] = quantile_of(latencies[kind], 0.01);
    }
  }

  static bool is_wait(HostApiKind kind) {
    return kind == HostApiKind::kEventSynchronize || kind == HostApiKind::kStreamSynchronize ||
           kind == HostApiKind::kDeviceSynchronize;
  }

  void add_host_order() {
    struct Thread {
      std::int32_t last = -1;
    };
    std::map<std::pair<std::int32_t, std::uint32_t>, Thread> threads;
    std::int32_t latest = -1;  // call of the process that ended last, any thread
    std::int32_t process = -1;
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      const std::int32_t api = hosts_[i];
      const HostApi& it = trace_.host_apis[api];
      if (it.process != process) {
        process = it.process;
        latest = -1;
      }
      std::int32_t& last = threads[{it.process, it.thread}].last;
      const std::int64_t start = seen(host_start(api));
      const bool other = latest >= 0 && trace_.host_apis[latest].thread != it.thread;
      const std::int64_t since = latest >= 0 ? start - seen(host_end(latest)) : -1;
      // A thread that was idle for long and starts soon after another stopped was waiting for it: backward
      // after forward, for example, with some host work of the framework between. Only if the other one then
      // stays quiet for as long.
      const std::int64_t own_gap = last < 0 ? kHandOffGap_ns + 1 : start - seen(host_end(last));
      const bool near = since >= 0 && (since <= kHandOffGap_ns || since <= own_gap / kHandOffRatio);
      const bool handed = other && own_gap > kHandOffGap_ns && near &&
                          quiet_after(i, trace_.host_apis[latest].thread, std::max(since, kHandOffGap_ns));
      if (last >= 0 && start >= seen(host_end(last))) {
        add(host_end(last), host_start(api), handed ? 0 : start - seen(host_end(last)), EdgeKind::kHostOrder);
      } else if (last >= 0) {
        add(host_start(last), host_start(api), start - seen(host_start(last)), EdgeKind::kHostOrder);
      }
      if (handed) {
        add(host_end(latest), host_start(api), since, EdgeKind::kHandOff);
        ++out_.quality.inferred_edges;
      } else if (last < 0 && latest >= 0) {
        // The first call of a thread comes at a fixed time after what the process did before.
        add(host_start(latest), host_start(api), start - seen(host_start(latest)), EdgeKind::kHostOrder);
      }
      last = api;
      // What an unknown thread does (a watchdog that polls events) makes nobody wait.
      if (it.thread != 0 && (latest < 0 || seen(host_end(api)) >= seen(host_end(latest)))) latest = api;
    }
  }

  // No call of `thread` within `gap_ns` after call number `from` in host order.
  bool quiet_after(std::size_t from, std::uint32_t thread, std::int64_t gap_ns) const {
    const std::int32_t api = hosts_[from];
    const std::int64_t until = seen(host_start(api)) + gap_ns;
    for (std::size_t i = from + 1; i < hosts_.size() && i < from + kWalkBack; ++i) {
      const HostApi& it = trace_.host_apis[hosts_[i]];
      if (it.process != trace_.host_apis[api].process || seen(host_start(hosts_[i])) > until) break;
      if (it.thread == thread) return false;
    }
    return true;
  }

  struct StreamState {
    std::int32_t last = -1;             // operation launched last
    std::vector<std::int32_t> pending;  // operations that the next one waits for
  };

  void add_launches_and_events() {
    // Operations of each launch: a graph launch has many.
    std::vector<std::pair<std::int32_t, std::int32_t>> launched;  // api, op
    for (const std::int32_t op : by_start_) {
      const std::int32_t api = launches_.api_of_op[op];
      if (api >= 0 && seen(host_start(api)) >= 0) launched.emplace_back(api, op);
    }
    std::sort(launched.begin(), launched.end(), [&](const auto& l, const auto& r) {
      if (l.first != r.first) return l.first < r.first;
      return times_.start_ns[l.second] != times_.start_ns[r.second]
                 ? times_.start_ns[l.second] < times_.start_ns[r.second]
                 : l.second < r.second;
    });
    std::unordered_map<Stream, StreamState> streams;
    std::unordered_map<std::uint64_t, std::vector<std::int32_t>> by_event, by_sync;
    std::vector<std::int32_t> of_launch;
    waits_.assign(hosts_.size(), -1);
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      const std::int32_t api = hosts_[i];
      const HostApi& it = trace_.host_apis[api];
      const auto event_key = stream_of(it.process, it.event);
      const auto sync_key = (static_cast<std::uint64_t>(it.process) << 48) ^ it.event_sync;
      switch (it.kind) {
        case HostApiKind::kEventRecord: {
          if (it.stream == kUnknownStream) break;
          const StreamState& state = streams[stream_of(it.process, it.stream)];
          std::vector<std::int32_t> before = state.pending;
          if (state.last >= 0) before.push_back(state.last);
          if (it.event != 0) by_event[event_key] = before;
          if (it.event_sync != 0) by_sync[sync_key] = std::move(before);
          break;
        }
        case HostApiKind::kStreamWaitEvent:
        case HostApiKind::kEventSynchronize: {
          const std::vector<std::int32_t>* before = nullptr;
          if (const auto at = by_sync.find(sync_key); it.event_sync != 0 && at != by_sync.end()) {
            before = &at->second;
          } else if (const auto known = by_event.find(event_key); it.event != 0 && known != by_event.end()) {
            before = &known->second;
          }
          if (before == nullptr) break;
          if (it.kind == HostApiKind::kEventSynchronize) {
            for (const std::int32_t op : *before) {
              if (waits_[i] < 0 || times_.end_ns[op] > times_.end_ns[waits_[i]]) waits_[i] = op;
            }
          } else if (it.stream != kUnknownStream) {
            auto& pending = streams[stream_of(it.process, it.stream)].pending;
            for (const std::int32_t op : *before) {
              if (pending.size() < kMostPending &&
                  std::find(pending.begin(), pending.end(), op) == pending.end())
                pending.push_back(op);
            }
          }
          break;
        }
        case HostApiKind::kStreamSynchronize:
          if (it.stream != kUnknownStream) {
            const StreamState& state = streams[stream_of(it.process, it.stream)];
            waits_[i] = state.last;
            for (const std::int32_t op : state.pending) {
              if (waits_[i] < 0 || times_.end_ns[op] > times_.end_ns[waits_[i]]) waits_[i] = op;
            }
          }
          break;
        case HostApiKind::kDeviceSynchronize:
          break;
        default: {
          auto at = std::lower_bound(launched.begin(), launched.end(), std::make_pair(api, -1),
                                     [](const auto& l, const auto& r) { return l.first < r.first; });
          const std::int64_t latency = launch_latency_[static_cast<std::size_t>(it.kind)];
          of_launch.clear();
          for (; at != launched.end() && at->first == api; ++at) {
            const std::int32_t op = at->second;
            StreamState& state = streams[stream_of(it.process, trace_.device_ops[op].stream)];
            const bool again =
                state.last >= 0 && launches_.api_of_op[state.last] == api;  // stream order holds the rest
            if (!again) add(host_start(api), op_start(op), latency, EdgeKind::kLaunch);
            for (const std::int32_t before : state.pending) {
              if (before != op) add(op_end(before), op_start(op), 0, EdgeKind::kEvent);
            }
            state.pending.clear();
            state.last = op;
            of_launch.push_back(op);
          }
          // A copy that returns only when it is done.
          if (it.kind == HostApiKind::kMemcpy && of_launch.size() == 1 &&
              times_.end_ns[of_launch[0]] <= seen(host_end(api)))
            waits_[i] = of_launch[0];
          break;
        }
      }
    }
  }

  // The operation of a process that ended last by `until` among those launched before `launched`.
  std::int32_t last_done(std::int32_t process, std::int64_t until, std::int64_t launched) const {
    const auto begin = by_end_.begin() + first_op_[process], end = by_end_.begin() + first_op_[process + 1];
    auto at = std::upper_bound(begin, end, until,
                               [&](std::int64_t time, std::int32_t op) { return time < times_.end_ns[op]; });
    for (std::int32_t i = 0; at != begin && i < kWalkBack; ++i) {
      --at;
      const std::int64_t known = launches_.launched_ns[*at];
      if ((known >= 0 ? known : times_.start_ns[*at]) < launched) return *at;
    }
    return -1;
  }

  void add_synchronisation() {
    std::vector<std::int64_t> returns;
    // Waits whose operation is not known: the one that ended last before the call returned.
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      const HostApi& it = trace_.host_apis[hosts_[i]];
      if (!is_wait(it.kind)) continue;
      const std::int64_t start = seen(host_start(hosts_[i])), end = seen(host_end(hosts_[i]));
      const bool blocked = end - start > kNear_ns;
      const bool found = waits_[i] >= 0 && times_.end_ns[waits_[i]] <= end + kTolerance_ns;
      const bool explains = found && (!blocked || times_.end_ns[waits_[i]] > end - kHandOffGap_ns);
      if (!explains) {
        const std::int32_t done = last_done(it.process, end, start);
        if (done >= 0 && (waits_[i] < 0 || !found || times_.end_ns[done] > times_.end_ns[waits_[i]]))
          waits_[i] = done;
      }
      if (waits_[i] >= 0 && times_.end_ns[waits_[i]] > start && times_.end_ns[waits_[i]] <= end)
        returns.push_back(end - times_.end_ns[waits_[i]]);
    }
    const std::int64_t return_latency = quantile_of(returns, 0.1);
    std::int64_t depth = 0;
    std::ptrdiff_t done = 0;
    std::int32_t process = -1;
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      const std::int32_t api = hosts_[i];
      const HostApi& it = trace_.host_apis[api];
      const auto kind = static_cast<std::size_t>(it.kind);
      const std::int64_t start = seen(host_start(api)), duration = seen(host_end(api)) - start;
      if (it.process != process) {
        process = it.process;
        depth = 0;
        done = first_op_[process];
      }
      const bool launch = it.kind == HostApiKind::kLaunch || it.kind == HostApiKind::kGraphLaunch ||
                          it.kind == HostApiKind::kMemcpy || it.kind == HostApiKind::kMemset;
      while (done < first_op_[process + 1] && times_.end_ns[by_end_[done]] <= start) ++done, --depth;
      std::int64_t own = duration;
      if (waits_[i] >= 0 && times_.end_ns[waits_[i]] <= seen(host_end(api)) + kTolerance_ns) {
        if (add(op_end(waits_[i]), host_end(api), return_latency, EdgeKind::kSync))
          own = std::min(duration, own_cost_[kind]);
      } else if (launch && depth >= kQueueDepth && duration > kNear_ns &&
                 static_cast<double>(duration) >
                     kBlockedFactor * static_cast<double>(median_duration_[kind])) {
        const std::int32_t freed = last_done(process, seen(host_end(api)), start);
        if (freed >= 0 && times_.end_ns[freed] > start &&
            add(op_end(freed), host_end(api), 0, EdgeKind::kQueue))
          own = std::min(duration, median_duration_[kind]);
      }
      add(host_start(api), host_end(api), own, EdgeKind::kDuration);
      if (launch) ++depth;
    }
  }

  void add_meetings() {
    for (std::size_t r = 0; r < set_.rendezvous.size(); ++r) {
      const Rendezvous& rendezvous = set_.rendezvous[r];
      const auto meeting = static_cast<std::uint32_t>(out_.meet_base + r);
      if (!rendezvous.barrier || rendezvous.arrivals.empty()) continue;
      out_.observed_ns[meeting] = rendezvous.last_arrival_ns;
      for (const Arrival& arrival : rendezvous.arrivals) {
        if (!joins(rendezvous, arrival.op)) {
          ++out_.quality.contradicted_edges;
          continue;
        }
        add(op_start(arrival.op), meeting, 0, EdgeKind::kArrival);
        const std::int64_t tail =
            times_.end_ns[arrival.op] - rendezvous.last_arrival_ns - rendezvous.transfer_ns;
        raw_.push_back({op_end(arrival.op), {meeting, EdgeKind::kTransfer, tail}});
      }
    }
  }

  // By operation of a process in start order: when the host issued this collective, or else the next one of
  // the same stream order; -1: unknown.
  std::vector<std::int64_t> next_issue_times(std::size_t process) const {
    std::vector<std::int64_t> issued(first_op_[process + 1] - first_op_[process], -1);
    std::int64_t next = -1;
    for (std::ptrdiff_t i = first_op_[process + 1] - 1; i >= first_op_[process]; --i) {
      const std::int32_t call = trace_.device_ops[by_start_[i]].call;
      if (call >= 0) {
        const CollectiveCall& it = trace_.calls[call];
        next = it.captured || it.host_start_ns <= 0
                   ? -1
                   : aligned_ns(alignment_, static_cast<std::int32_t>(process), it.host_start_ns);
      }
      issued[i - first_op_[process]] = next;
    }
    return issued;
  }

  // A wait that nothing explains, right after another stream of the process became free: most likely an event
  // that was not recorded.
  void add_inferred() {
    out_.pinnable.assign(out_.observed_ns.size(), 0);
    for (std::size_t process = 0; process < trace_.processes.size(); ++process) {
      const bool known = launches_.host_known(static_cast<std::int32_t>(process));
      const std::int64_t from = known ? kUnexplainedHost_ns : kUnexplained_ns;
      const auto begin = by_end_.begin() + first_op_[process], end = by_end_.begin() + first_op_[process + 1];
      const std::vector<std::int64_t> issued =
          known ? std::vector<std::int64_t>() : next_issue_times(process);
      std::int32_t before = -1;
      for (std::ptrdiff_t i = first_op_[process]; i < first_op_[process + 1]; ++i) {
        const std::int32_t op = by_start_[i], earlier = before;
        before = op;
        const std::int64_t start = times_.start_ns[op];
        const bool first = explained_[op] == std::numeric_limits<std::int64_t>::min();
        if (!first && start - explained_[op] <= from) continue;
        auto at = std::upper_bound(begin, end, start, [&](std::int64_t time, std::int32_t other) {
          return time < times_.end_ns[other];
        });
        bool found = false;
        for (std::int32_t walk = 0; at != begin && walk < kWalkBack && !found; ++walk) {
          --at;
          if (start - times_.end_ns[*at] > kNear_ns) break;
          const bool other = trace_.device_ops[*at].stream != trace_.device_ops[op].stream;
          found =
              other && times_.start_ns[*at] < start && add(op_end(*at), op_start(op), 0, EdgeKind::kInferred);
        }
        if (!found && first && earlier >= 0)
          found = add(op_start(earlier), op_start(op), 0, EdgeKind::kInferred);
        if (found) ++out_.quality.inferred_edges;
        if (known || first || start - explained_[op] <= kPinFrom_ns) continue;
        // Had the host issued a later collective long before, this operation was in the queue by then.
        const std::int64_t later = issued[i - first_op_[process]];
        if (later < 0 || later > start - kNear_ns) out_.pinnable[op_start(op)] = 1;
      }
    }
  }

  void group_edges() {
    const std::size_t points = out_.observed_ns.size();
    out_.first_edge.assign(points + 1, 0);
    for (const RawEdge& raw : raw_) ++out_.first_edge[raw.to + 1];
    for (std::size_t i = 0; i < points; ++i) out_.first_edge[i + 1] += out_.first_edge[i];
    out_.edges.resize(raw_.size());
    std::vector<std::uint32_t> next(out_.first_edge.begin(), out_.first_edge.end() - 1);
    for (const RawEdge& raw : raw_) out_.edges[next[raw.to]++] = raw.edge;
  }

  // Least trusted first.
  static constexpr std::array<EdgeKind, 8> kDoubtful = {
      EdgeKind::kInferred, EdgeKind::kHandOff, EdgeKind::kQueue,  EdgeKind::kOverlap,
      EdgeKind::kEvent,    EdgeKind::kSync,    EdgeKind::kLaunch, EdgeKind::kTransfer};

  void order_points() {
    const std::size_t points = out_.observed_ns.size();
    for (std::size_t attempt = 0;; ++attempt) {
      group_edges();
      // Outgoing edges, for Kahn's algorithm.
      std::vector<std::uint32_t> first(points + 1, 0), waiting(points, 0), out(raw_.size());
      for (const RawEdge& raw : raw_) ++first[raw.edge.from + 1];
      for (std::size_t i = 0; i < points; ++i) first[i + 1] += first[i];
      std::vector<std::uint32_t> next(first.begin(), first.end() - 1);
      for (const RawEdge& raw : raw_) {
        out[next[raw.edge.from]++] = raw.to;
        ++waiting[raw.to];
      }
      out_.order.clear();
      std::size_t taking_part = 0;
      for (std::size_t i = 0; i < points; ++i) {
        if (out_.observed_ns[i] < 0) continue;
        ++taking_part;
        if (waiting[i] == 0) out_.order.push_back(static_cast<std::uint32_t>(i));
      }
      for (std::size_t at = 0; at < out_.order.size(); ++at) {
        const std::uint32_t point = out_.order[at];
        for (std::uint32_t i = first[point]; i < first[point + 1]; ++i) {
          if (--waiting[out[i]] == 0) out_.order.push_back(out[i]);
        }
      }
      if (out_.order.size() == taking_part || attempt == kDoubtful.size()) return;
      // A cycle: its edges of the least trusted kind go, where both ends are stuck.
      const EdgeKind kind = kDoubtful[attempt];
      const auto stuck = [&](const RawEdge& raw) {
        return raw.edge.kind == kind && waiting[raw.to] > 0 && waiting[raw.edge.from] > 0 &&
               seen(raw.to) <= seen(raw.edge.from);
      };
      std::vector<std::uint32_t> alone;
      if (kind == EdgeKind::kTransfer) {
        for (const RawEdge& raw : raw_) {
          if (stuck(raw)) alone.push_back(raw.to);
        }
      }
      const auto removed = std::erase_if(raw_, stuck);
      out_.quality.broken_cycles += static_cast<std::int64_t>(removed);
      // A kernel that lost its rendezvous keeps its own duration.
      for (const std::uint32_t end : alone)
        raw_.push_back({end, {end - 1, EdgeKind::kDuration, seen(end) - seen(end - 1)}});
    }
  }

  void explain() {
    const std::size_t points = out_.observed_ns.size();
    out_.residual_ns.assign(points, 0);
    for (const std::uint32_t point : out_.order) {
      std::int64_t reached = std::numeric_limits<std::int64_t>::min();
      for (std::uint32_t i = out_.first_edge[point]; i < out_.first_edge[point + 1]; ++i) {
        const Edge& edge = out_.edges[i];
        std::int64_t lag = edge.lag_ns;
        if (edge.kind == EdgeKind::kTransfer)
          lag = std::max<std::int64_t>(0, lag + set_.rendezvous[edge.from - out_.meet_base].transfer_ns);
        reached = std::max(reached, seen(edge.from) + lag);
      }
      out_.residual_ns[point] = reached == std::numeric_limits<std::int64_t>::min()
                                    ? seen(point)
                                    : std::max<std::int64_t>(0, seen(point) - reached);
    }
    double share = 0;
    int counted = 0;
    for (std::size_t process = 0; process < trace_.processes.size(); ++process) {
      if (first_op_[process] == first_op_[process + 1]) continue;
      ++counted;
      const std::int64_t begin = times_.start_ns[by_start_[first_op_[process]]];
      const std::int64_t end = times_.end_ns[by_end_[first_op_[process + 1] - 1]];
      std::int64_t covered = begin, unexplained = 0;
      for (std::ptrdiff_t i = first_op_[process]; i < first_op_[process + 1]; ++i) {
        const std::int32_t op = by_start_[i];
        if (out_.first_edge[op_start(op)] == out_.first_edge[op_start(op) + 1]) continue;
        const std::int64_t from = std::max(covered, times_.start_ns[op] - out_.residual_ns[op_start(op)]);
        if (from < times_.start_ns[op]) unexplained += times_.start_ns[op] - from;
        covered = std::max(covered, times_.start_ns[op]);
      }
      if (end > begin) share += static_cast<double>(unexplained) / static_cast<double>(end - begin);
    }
    out_.quality.residual_share = counted > 0 ? share / counted : 0;
  }

  const Trace& trace_;
  const DeviceTimes& times_;
  const ClockAlignment& alignment_;
  const Launches& launches_;
  const CollectiveSet& set_;
  Timeline out_;
  std::vector<std::int32_t> hosts_;       // usable host calls, by process and start
  std::vector<std::int32_t> by_start_;    // usable operations, by process and start
  std::vector<std::int32_t> by_end_;      // the same, by process and end
  std::vector<std::ptrdiff_t> first_op_;  // by process, into both
  std::vector<std::int64_t> explained_;   // by operation: earliest start that the edges so far allow
  std::vector<std::int32_t> waits_;       // by position in hosts_: operation that the call waited for
  std::array<std::int64_t, kKinds> own_cost_{}, median_duration_{}, launch_latency_{};
  std::vector<RawEdge> raw_;
};

}  // namespace

Timeline build_timeline(const Trace& trace, const DeviceTimes& times, const ClockAlignment& alignment,
                        const Launches& launches, const CollectiveSet& set) {
  return Builder(trace, times, alignment, launches, set).run();
}

}  // namespace echotp
