// SPDX-License-Identifier: Apache-2.0
// Reader of the cost table, interpolation, and the threshold "auto".
#include "shim/costs.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shim/json_reader.hpp"

namespace echotp {
namespace {

constexpr double kMaxUs = 1e12;
constexpr double kMaxRate = 1e12;
constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();
constexpr JsonLimits kCostLimits{.max_bytes = 16u << 20, .max_depth = 16};

// A missing or null member: unknown.
std::optional<JsonValue> known(const JsonValue& object, std::string_view key) {
  auto value = object.get(key);
  if (value && value->is_null()) value.reset();
  return value;
}

std::optional<CostSpread> read_spread(const JsonValue& entry, std::string_view key, JsonErrors& errors) {
  const auto value = known(entry, key);
  if (!value || !value->expect_object(errors)) return std::nullopt;
  const auto median = known(*value, "median");
  if (!median) return std::nullopt;
  CostSpread spread;
  // Times are on logarithmic scales later: zero has no place there.
  const auto time = [&](const JsonValue& at) { return at.number(errors, 1e-6, kMaxUs); };
  const auto measured = time(*median);
  if (const auto p10 = known(*value, "p10")) spread.p10 = time(*p10);
  if (const auto p90 = known(*value, "p90")) spread.p90 = time(*p90);
  if (const auto samples = known(*value, "samples"))
    spread.samples = samples->integer(errors, 0, kMaxInteger);
  if (!measured) return std::nullopt;
  spread.median = *measured;
  return spread;
}

std::optional<double> read_rate(const JsonValue& object, std::string_view key, JsonErrors& errors) {
  const auto value = known(object, key);
  return value ? value->number(errors, 0, kMaxRate) : std::nullopt;
}

void read_codec(const JsonValue& entry, Codec& codec, JsonErrors& errors) {
  const auto value = known(entry, "codec");
  if (!value || !value->expect_object(errors)) return;
  if (const auto bits = value->get("bits"))
    codec.bits = codec.first_leg_bits = static_cast<int>(bits->integer(errors, 1, 16).value_or(4));
  if (const auto bits = known(*value, "first_leg_bits"))
    codec.first_leg_bits = static_cast<int>(bits->integer(errors, 1, 16).value_or(4));
  if (const auto group = value->get("group")) {
    codec.group = static_cast<int>(group->integer(errors, 1, 1 << 20).value_or(32));
  }
}

void read_compensation(const JsonValue& entry, Compensation& out, JsonErrors& errors) {
  const auto value = known(entry, "compensation");
  if (!value || !value->expect_object(errors)) return;
  if (const auto mode = value->need(errors, "mode")) {
    const auto choice = mode->choice(errors, {"none", "owner", "both", "drift"});
    out.mode = static_cast<CompensationMode>(choice.value_or(0));
  }
  const auto coefficient = [&](std::string_view key, float& to) {
    if (const auto at = known(*value, key)) to = static_cast<float>(at->number(errors, 0, 1).value_or(to));
  };
  coefficient("a", out.a);
  coefficient("bf", out.bf);
  coefficient("b", out.b);
  coefficient("bs", out.bs);
  if (const auto state = known(*value, "state")) {
    const auto choice = state->choice(errors, {"fp32", "fp16", "int8"});
    out.state = static_cast<StateFormat>(choice.value_or(0));
  }
}

CostEntry read_entry(const JsonValue& value, JsonErrors& errors) {
  CostEntry entry;
  if (!value.expect_object(errors)) return entry;
  if (const auto ranks = value.need(errors, "ranks")) {
    entry.ranks = static_cast<int>(ranks->integer(errors, 1, 1 << 20).value_or(2));
  }
  if (const auto bytes = value.need(errors, "bytes")) {
    entry.bytes = bytes->integer(errors, 1, kMaxInteger).value_or(1);
  }
  if (const auto dtype = value.get("dtype")) {
    entry.dtype = static_cast<DataType>(dtype->choice(errors, {"bf16", "fp16", "fp32"}).value_or(0));
  }
  if (const auto transport = value.get("transport")) entry.transport = transport->string(errors).value_or("");
  read_codec(value, entry.codec, errors);
  read_compensation(value, entry.compensation, errors);
  if (const auto background = known(value, "background"))
    entry.background = background->string(errors).value_or("idle");
  entry.background_nccl_gbs = read_rate(value, "background_nccl_gbs", errors);
  entry.background_echo_gbs = read_rate(value, "background_echo_gbs", errors);
  entry.nccl_us = read_spread(value, "nccl_us", errors);
  entry.echo_us = read_spread(value, "echo_us", errors);
  if (const auto wire = known(value, "wire_bytes")) entry.wire_bytes = wire->integer(errors, 0, kMaxInteger);
  if (const auto equal = known(value, "bytes_equal")) entry.bytes_equal = equal->boolean(errors);
  if (const auto why = known(value, "why_not")) entry.why_not = why->string(errors);
  return entry;
}

CostEnvironment read_environment(const JsonValue& root, JsonErrors& errors) {
  CostEnvironment out;
  const auto value = known(root, "environment");
  if (!value || !value->expect_object(errors)) return out;
  const auto text = [&](std::string_view key, std::optional<std::string>& to) {
    if (const auto at = known(*value, key)) to = at->string(errors);
  };
  text("gpu", out.gpu);
  text("driver", out.driver);
  text("cuda", out.cuda);
  text("nccl", out.nccl);
  text("host", out.host);
  text("link", out.link);
  if (const auto env = known(*value, "nccl_env"); env && env->expect_object(errors)) {
    for (const std::string& name : env->keys())
      out.nccl_env[name] = env->get(name)->string(errors).value_or("");
  }
  return out;
}

Result<CostTable> read_document(const JsonDocument& document) {
  JsonErrors errors;
  const JsonValue root = document.root();
  CostTable table;
  if (check_schema(root, errors, "costs")) {
    table.environment = read_environment(root, errors);
    if (const auto settings = known(root, "settings"); settings && settings->expect_object(errors)) {
      table.background_alone_gbs = read_rate(*settings, "background_alone_gbs", errors);
      if (const auto path = known(*settings, "background_path")) table.background_path = path->string(errors);
    }
    const auto entries = root.need(errors, "entries");
    if (entries && entries->expect_array(errors, "an array of entries")) {
      for (std::size_t i = 0; i < entries->size(); ++i)
        table.entries.push_back(read_entry(entries->at(i), errors));
    }
  }
  if (!errors.empty()) return errors.first();
  return table;
}

struct Point {
  double log_bytes;
  double log_us;
  double weight = 1;
};

// Isotonic regression by pooling neighbours that fall: noise must not make a larger message cheaper.
std::vector<Point> never_falling(const std::vector<Point>& points) {
  std::vector<std::pair<double, std::size_t>> pools;  // mean, points
  for (const Point& point : points) {
    pools.emplace_back(point.log_us, 1);
    while (pools.size() > 1 && pools[pools.size() - 2].first > pools.back().first) {
      const auto [mean, size] = pools.back();
      pools.pop_back();
      auto& into = pools.back();
      const auto total = static_cast<double>(into.second + size);
      into.first = (into.first * static_cast<double>(into.second) + mean * static_cast<double>(size)) / total;
      into.second += size;
    }
  }
  std::vector<Point> smooth = points;
  std::size_t next = 0;
  for (const auto& [mean, size] : pools) {
    for (std::size_t i = 0; i < size; ++i) smooth[next++].log_us = mean;
  }
  return smooth;
}

double value_at(const std::vector<Point>& curve, double log_bytes) {
  if (log_bytes <= curve.front().log_bytes) return std::exp(curve.front().log_us);
  if (log_bytes > curve.back().log_bytes) {
    // One point says nothing of the slope: time in proportion to the size, as on any link that is full.
    double slope = 1;
    if (curve.size() > 1) {
      const Point& before = curve[curve.size() - 2];
      slope = std::clamp((curve.back().log_us - before.log_us) / (curve.back().log_bytes - before.log_bytes),
                         0.0, 1.0);
    }
    return std::exp(curve.back().log_us + slope * (log_bytes - curve.back().log_bytes));
  }
  const auto right = std::lower_bound(curve.begin(), curve.end(), log_bytes,
                                      [](const Point& point, double at) { return point.log_bytes < at; });
  const Point& high = *right;
  const Point& low = *(right - 1);
  const double share = (log_bytes - low.log_bytes) / (high.log_bytes - low.log_bytes);
  return std::exp(low.log_us + share * (high.log_us - low.log_us));
}

// The curve of one quantity; entries that share a size are averaged.
template <class Read>
std::optional<double> interpolate(const std::vector<const CostEntry*>& entries, double log_bytes, Read read) {
  std::map<std::int64_t, Point> by_bytes;
  for (const CostEntry* entry : entries) {
    const std::optional<double> us = read(*entry);
    if (!us) return std::nullopt;
    auto [at, fresh] =
        by_bytes.try_emplace(entry->bytes, Point{std::log(static_cast<double>(entry->bytes)), std::log(*us)});
    if (!fresh) {
      at->second.weight += 1;
      at->second.log_us += (std::log(*us) - at->second.log_us) / at->second.weight;
    }
  }
  std::vector<Point> points;
  for (const auto& [bytes, point] : by_bytes) points.push_back(point);
  return value_at(never_falling(points), log_bytes);
}

// Medians, and the quantiles where every entry has them.
CostSpread interpolate_spread(const std::vector<const CostEntry*>& entries, double log_bytes,
                              std::optional<CostSpread> CostEntry::*which) {
  CostSpread spread;
  spread.median =
      *interpolate(entries, log_bytes, [&](const CostEntry& e) { return std::optional((e.*which)->median); });
  spread.p10 = interpolate(entries, log_bytes, [&](const CostEntry& e) { return (e.*which)->p10; });
  spread.p90 = interpolate(entries, log_bytes, [&](const CostEntry& e) { return (e.*which)->p90; });
  // The three curves are smoothed apart from each other: keep their order.
  if (spread.p10) spread.p10 = std::min(*spread.p10, spread.median);
  if (spread.p90) spread.p90 = std::max(*spread.p90, spread.median);
  return spread;
}

/// Entries with both times that an "auto" of `query` rests on, by number of ranks: those of one transport and
/// of the same method where there are any, else all of that transport.
std::map<int, std::vector<const CostEntry*>> relevant(const CostTable& table, const ThresholdQuery& query,
                                                      const std::string& transport) {
  std::map<int, std::vector<const CostEntry*>> all, alike;
  for (const CostEntry& entry : table.entries) {
    if (entry.ranks < query.min_ranks || entry.ranks > query.max_ranks || entry.transport != transport)
      continue;
    if (!entry.nccl_us || !entry.echo_us) continue;
    all[entry.ranks].push_back(&entry);
    const bool dtype = query.dtypes.empty() ||
                       std::find(query.dtypes.begin(), query.dtypes.end(), entry.dtype) != query.dtypes.end();
    if (dtype && entry.codec == query.codec && entry.compensation.mode == query.compensation)
      alike[entry.ranks].push_back(&entry);
  }
  for (auto& [ranks, entries] : alike) all[ranks] = std::move(entries);
  return all;
}

/// A value of the entries by size; where several share a size, what `keep` prefers.
template <class Value, class Keep>
std::map<std::int64_t, double> by_size(const std::vector<const CostEntry*>& entries, Value value, Keep keep) {
  std::map<std::int64_t, double> out;
  for (const CostEntry* entry : entries) {
    const auto [at, fresh] = out.try_emplace(entry->bytes, value(*entry));
    if (!fresh) at->second = keep(at->second, value(*entry));
  }
  return out;
}

double smaller(double left, double right) {
  return std::min(left, right);
}
double larger(double left, double right) {
  return std::max(left, right);
}

std::int64_t threshold(const std::map<std::int64_t, double>& gains) {
  std::int64_t from = kNeverBytes;
  for (auto at = gains.rbegin(); at != gains.rend() && at->second >= kAutoMinGain; ++at) from = at->first;
  return from;
}

}  // namespace

Result<CostTable> parse_costs(std::string_view text, const std::string& file_label) {
  auto document = JsonDocument::parse(text, file_label, kCostLimits);
  if (!document) return document.error();
  return read_document(*document);
}

Result<CostTable> read_costs(const std::string& path) {
  auto document = JsonDocument::read(path, kCostLimits);
  if (!document) return document.error();
  return read_document(*document);
}

std::optional<CostAt> cost_at(const CostTable& table, const CostQuery& query, std::int64_t bytes) {
  std::vector<const CostEntry*> entries;
  for (const CostEntry& entry : table.entries) {
    if (entry.ranks != query.ranks || entry.transport != query.transport) continue;
    if (query.compensation && entry.compensation.mode != *query.compensation) continue;
    if (query.dtype && entry.dtype != *query.dtype) continue;
    if (query.group && entry.codec.group != *query.group) continue;
    if (query.state && entry.compensation.state != *query.state) continue;
    if (query.bits && entry.codec.bits != *query.bits) continue;
    if (query.first_leg_bits && entry.codec.first_leg_bits != *query.first_leg_bits) continue;
    if (entry.nccl_us && entry.echo_us) entries.push_back(&entry);
  }
  if (entries.empty() || bytes <= 0) return std::nullopt;
  const auto [least, most] = std::minmax_element(
      entries.begin(), entries.end(), [](const auto* l, const auto* r) { return l->bytes < r->bytes; });
  const double log_bytes = std::log(static_cast<double>(bytes));
  CostAt at;
  at.nccl_us = interpolate_spread(entries, log_bytes, &CostEntry::nccl_us);
  at.echo_us = interpolate_spread(entries, log_bytes, &CostEntry::echo_us);
  at.extrapolated = bytes < (*least)->bytes || bytes > (*most)->bytes;
  return at;
}

std::optional<std::int64_t> auto_min_bytes(const CostTable& table, const ThresholdQuery& query) {
  std::map<int, std::map<std::int64_t, double>> gains;  // by ranks and size
  const auto gain = [](const CostEntry& entry) { return entry.nccl_us->median / entry.echo_us->median; };
  for (const std::string& transport : query.transports) {
    for (const auto& [ranks, entries] : relevant(table, query, transport)) {
      for (const auto& [bytes, worst] : by_size(entries, gain, smaller)) {
        const auto [at, fresh] = gains[ranks].try_emplace(bytes, worst);
        if (!fresh) at->second = std::max(at->second, worst);
      }
    }
  }
  if (gains.empty()) return std::nullopt;
  std::int64_t largest = 0;
  for (const auto& [ranks, by_bytes] : gains) largest = std::max(largest, threshold(by_bytes));
  return largest;
}

std::vector<TransportStep> transport_steps(const CostTable& table, const ThresholdQuery& query) {
  std::vector<TransportStep> steps;
  const auto time = [](const CostEntry& entry) { return entry.echo_us->median; };
  const auto p2p = relevant(table, query, transport_name(TransportChoice::kP2p));
  for (const auto& [ranks, entries] : relevant(table, query, transport_name(TransportChoice::kStaged))) {
    const auto direct = p2p.find(ranks);
    if (direct == p2p.end()) continue;
    const auto direct_us = by_size(direct->second, time, larger);
    std::optional<TransportChoice> last;
    for (const auto& [bytes, staged_us] : by_size(entries, time, larger)) {
      const auto same = direct_us.find(bytes);
      if (same == direct_us.end()) continue;
      const auto faster = same->second <= staged_us ? TransportChoice::kP2p : TransportChoice::kStaged;
      // The first step holds for what is smaller than anything measured, too.
      if (last != faster) steps.push_back({ranks, last ? bytes : 0, faster});
      last = faster;
    }
  }
  return steps;
}

}  // namespace echotp
