// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_candidates.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

namespace echotp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kModes[] = {"none", "owner", "both", "ef", "drift"};
constexpr TransportChoice kTransports[] = {TransportChoice::kStaged, TransportChoice::kP2p};
constexpr StateFormat kStates[] = {StateFormat::kFp32, StateFormat::kFp16, StateFormat::kInt8};
constexpr int kWidths[] = {4, 8};

const char* same(const char* text) {
  return text;
}

// The values that a list names, each once.
template <class T, std::size_t N, class Name>
Result<std::vector<T>> read_list(const char* option, std::string_view list, const T (&known)[N], Name name) {
  std::vector<T> out;
  for (const std::string_view word : split_list(list)) {
    const auto found =
        std::find_if(std::begin(known), std::end(known), [&](T value) { return word == name(value); });
    if (found == std::end(known)) {
      std::string expected;
      for (const T value : known) expected.append(expected.empty() ? "" : ", ").append(name(value));
      return Error{
          ErrorCode::kBadInput,
          "'" + std::string(word) + "' is not known; expected " + expected + ", several with commas between",
          option};
    }
    if (std::find(out.begin(), out.end(), *found) == out.end()) out.push_back(*found);
  }
  return out;
}

// Reads into `out` if the list was given.
template <class T, class U, std::size_t N, class Name>
Status read_into(std::vector<T>& out, const char* option, const std::string* list, const U (&known)[N],
                 Name name) {
  if (list == nullptr) return Unit{};
  const auto read = read_list(option, *list, known, name);
  if (!read) return read.error();
  out.assign(read->begin(), read->end());
  return Unit{};
}

std::string width_name(int bits) {
  return std::to_string(bits);
}

std::string name_of(std::string_view transport, std::string_view mode, std::string_view state,
                    int first_leg_bits, int bits, int group) {
  std::string out(transport);
  out.append(" ").append(mode);
  if (!state.empty()) out.append(" ").append(state);
  return out + " " + std::to_string(first_leg_bits) + "+" + std::to_string(bits) + "/" +
         std::to_string(group);
}

std::string mode_name(const Compensation& compensation) {
  const bool feedback =
      compensation.mode == CompensationMode::kBoth && compensation.a == 1 && compensation.b == 0;
  return feedback ? "ef" : compensation_mode_name(compensation.mode);
}

}  // namespace

std::vector<std::string_view> split_list(std::string_view list) {
  std::vector<std::string_view> words;
  for (std::size_t start = 0; start <= list.size();) {
    const std::size_t comma = std::min(list.find(',', start), list.size());
    words.push_back(list.substr(start, comma - start));
    start = comma + 1;
  }
  return words;
}

Result<BenchGrid> read_bench_grid(const std::string* transports, const std::string* modes,
                                  const std::string* states, const std::string* first_leg_bits) {
  BenchGrid grid;
  for (const Status& status :
       {read_into(grid.transports, "--transports", transports, kTransports, transport_name),
        read_into(grid.modes, "--modes", modes, kModes, same),
        read_into(grid.states, "--states", states, kStates, state_format_name),
        read_into(grid.first_leg_bits, "--first-leg-bits", first_leg_bits, kWidths, width_name)})
    if (!status) return status.error();
  return grid;
}

std::string bench_policy(const BenchGrid& grid) {
  Json rules = Json::array();
  for (const TransportChoice transport : grid.transports) {
    for (const std::string& mode : grid.modes) {
      for (const StateFormat state : grid.states) {
        const bool stateless = mode == "none" || mode == "drift";
        if (stateless && state != grid.states.front()) continue;
        if (mode == "drift" && transport != TransportChoice::kStaged) continue;
        for (const int first_leg_bits : grid.first_leg_bits) {
          constexpr int kBits = Codec{}.bits;
          const std::string name =
              name_of(transport_name(transport), mode, stateless ? "" : state_format_name(state),
                      first_leg_bits, kBits, grid.group);
          Json compensation{{"mode", mode}};
          if (!stateless) compensation["state"] = state_format_name(state);
          if (mode == "drift") compensation["channels"] = kBenchChannels;
          rules.push_back(
              {{"match",
                {{"dtype", {"bf16", "fp16", "fp32"}}, {"op", {"sum"}}, {"communicator", {{"name", name}}}}},
               {"codec", {{"bits", kBits}, {"group", grid.group}, {"first_leg_bits", first_leg_bits}}},
               {"transport", transport_name(transport)},
               {"compensation", std::move(compensation)},
               {"pass", {{"direction", "none"}}}});
        }
      }
    }
  }
  return Json{{"schema", "echo-tp/policy/1"}, {"rules", std::move(rules)}}.dump(2) + "\n";
}

std::string candidate_name(const PolicyRule& rule) {
  const bool stateless =
      rule.compensation.mode == CompensationMode::kNone || rule.compensation.mode == CompensationMode::kDrift;
  return name_of(transport_name(rule.transport), mode_name(rule.compensation),
                 stateless ? "" : state_format_name(rule.compensation.state), rule.codec.first_leg_bits,
                 rule.codec.bits, rule.codec.group);
}

bool are_twins(const PolicyRule& left, const PolicyRule& right) {
  return left.transport != right.transport && left.codec == right.codec &&
         left.compensation == right.compensation;
}

}  // namespace echotp
