// SPDX-License-Identifier: Apache-2.0
// echo-tp simulate: what the accumulated error does with depth, by codec and compensation, without a GPU.
#include <algorithm>
#include <cstdlib>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cli/args.hpp"
#include "cli/bench_candidates.hpp"
#include "cli/text.hpp"
#include "echo_tp_version.h"
#include "kernels/depth.hpp"
#include "kernels/synthetic.hpp"
#include "shim/policy.hpp"

namespace echotp {
namespace {

constexpr const char* kHelp = R"(usage: echo-tp simulate [OPTIONS]

What error is left in a residual stream after L compressed all-reduces: the root mean square of the sum over L calls of
(output - exact sum), in units of one exact sum. From the scalar reference, whose bits the kernels' are, on synthetic
activations. With compensation it should stay where it is after one call; without it grows with depth. Real
activations differ: `echo-tp ab` judges a job.

Options:
      --ranks LIST           numbers of ranks, 2 to 64 (default 2,4,8)
      --group LIST           of 32, 64, 128 (default all)
      --compensation LIST    of none, owner, both, ef, smooth, drift (default none,owner,both,ef); smooth is both with
                             a = 0.75, bf = 0.25, b = 0.25, bs = 0.9
      --state FORMAT         of the estimates: fp32, fp16 or int8 (default int8)
      --bits N               of a code from owners to all, 4 or 8 (default 4)
      --first-leg-bits N     of a code from senders to owners, 4 or 8 (default as --bits)
      --quantiser NAME       extremum (default: codes -8 to 7, as echo-tp run uses) or symmetric (-7 to 7, for comparison)
      --activations NAME     gaussian (default) or heavy-tailed: student-t with outlier channels and a persistent mean;
                             then the error is that of all other channels
      --dtype TYPE           bf16, fp16 or fp32 (default bf16)
      --calls N              all-reduces of the pass, 1 to 4096 (default 128)
      --tokens N             of 1024 elements in a call, 1 to 1024 (default 4); drift averages over them: give it 32
      --seed N               of the activations (default 1)
      --json                 the table as a document on standard output
  -q, --quiet                results and errors only
      --color WHEN           auto, always or never
  -h, --help                 this text

Example:
  echo-tp simulate --ranks 4 --group 32,128 --compensation none,both --activations heavy-tailed

Exit codes: 0 ok; 2 bad usage.
)";

using Json = nlohmann::ordered_json;

struct Options {
  std::optional<std::string> ranks, group, compensation, state, bits, first_leg_bits, quantiser, activations,
      dtype;
  std::optional<std::int64_t> calls, tokens, seed;
  bool json = false;
};

struct Mode {
  const char* name;
  Compensation how;  // but for the format of the state
};

const std::vector<Mode>& modes() {
  static const std::vector<Mode> all = {
      {"none", {.mode = CompensationMode::kNone}},
      {"owner", {.mode = CompensationMode::kOwner}},
      {"both", {}},
      {"ef", {.a = 1, .bf = 0, .b = 0}},
      {"smooth", {.a = 0.75f, .bf = 0.25f, .b = 0.25f, .bs = 0.9f}},
      {"drift", {.mode = CompensationMode::kDrift, .channels = kSyntheticChannels}},
  };
  return all;
}

/// One row of the table.
struct Line {
  const Mode* mode;
  DepthSetup setup;
  std::vector<double> error;  // [calls]
};

Error wrong_word(const std::string& option, const std::string& word, const std::string& expected) {
  return {ErrorCode::kBadInput, "'" + plain(word) + "'; expected " + expected, option};
}

// A list whose words `read` turns into values; each once, in the order given.
template <class T, class Read>
Result<std::vector<T>> read_list(const std::string& option, const std::string& list,
                                 const std::string& expected, Read read) {
  std::vector<T> out;
  for (const std::string_view view : split_list(list)) {
    const std::string word(view);
    const std::optional<T> value = read(word);
    if (!value) return wrong_word(option, word, expected);
    if (std::find(out.begin(), out.end(), *value) == out.end()) out.push_back(*value);
  }
  return out;
}

std::optional<int> whole_number(const std::string& word, int low, int high) {
  if (word.empty() || word.size() > 4 || word.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  const int value = std::atoi(word.c_str());
  return value < low || value > high ? std::nullopt : std::optional(value);
}

template <class Enum>
Enum chosen(const std::optional<std::string>& word, std::initializer_list<const char*> names, Enum fallback) {
  int at = 0;
  for (const char* name : names) {
    if (word && *word == name) return static_cast<Enum>(at);
    ++at;
  }
  return fallback;
}

Result<std::vector<Line>> lines_of(const Options& options) {
  const auto ranks =
      read_list<int>("--ranks", options.ranks.value_or("2,4,8"), "numbers from 2 to 64, such as 2,4,8",
                     [](const std::string& word) { return whole_number(word, 2, kMaxRanks); });
  if (!ranks) return ranks.error();
  const auto groups =
      read_list<int>("--group", options.group.value_or("32,64,128"), "32, 64 or 128, or several: 32,128",
                     [](const std::string& word) {
                       const auto group = whole_number(word, 32, 128);
                       return group == 32 || group == 64 || group == 128 ? group : std::nullopt;
                     });
  if (!groups) return groups.error();
  const auto wanted =
      read_list<const Mode*>("--compensation", options.compensation.value_or("none,owner,both,ef"),
                             "none, owner, both, ef, smooth or drift, or several: none,both",
                             [](const std::string& word) -> std::optional<const Mode*> {
                               for (const Mode& mode : modes()) {
                                 if (word == mode.name) return &mode;
                               }
                               return std::nullopt;
                             });
  if (!wanted) return wanted.error();

  DepthSetup setup;
  setup.activations = chosen(options.activations, {"gaussian", "heavy-tailed"}, Activations::kGaussian);
  setup.calls = static_cast<int>(options.calls.value_or(128));
  setup.elements = options.tokens.value_or(4) * kSyntheticChannels;
  setup.seed = static_cast<unsigned>(options.seed.value_or(1));
  ReferenceSetup& collective = setup.collective;
  collective.dtype = chosen(options.dtype, {"bf16", "fp16", "fp32"}, DataType::kBf16);
  collective.codec.bits = options.bits == "8" ? 8 : 4;
  collective.codec.first_leg_bits =
      options.first_leg_bits ? (*options.first_leg_bits == "8" ? 8 : 4) : collective.codec.bits;
  collective.symmetric_range = options.quantiser == "symmetric";
  const auto state = chosen(options.state, {"fp32", "fp16", "int8"}, StateFormat::kInt8);
  std::vector<Line> out;
  for (const int rank : *ranks) {
    for (const int group : *groups) {
      for (const Mode* mode : *wanted) {
        collective.ranks = rank;
        collective.codec.group = group;
        collective.compensation = mode->how;
        collective.compensation.state = state;
        out.push_back({mode, setup, {}});
      }
    }
  }
  return out;
}

// Rows don't depend on each other: as many at a time as there are processors.
void simulate(std::vector<Line>& lines, Terminal& terminal) {
  const std::size_t at_once = std::max(1u, std::thread::hardware_concurrency());
  std::size_t done = 0;
  for (std::size_t first = 0; first < lines.size(); first += at_once) {
    std::vector<std::future<std::vector<double>>> running;
    for (std::size_t i = first; i < std::min(lines.size(), first + at_once); ++i) {
      running.push_back(std::async(std::launch::async, accumulated_error, lines[i].setup));
    }
    for (std::size_t i = 0; i < running.size(); ++i) lines[first + i].error = running[i].get();
    done += running.size();
    terminal.progress("simulated " + std::to_string(done) + " of " + std::to_string(lines.size()));
  }
  terminal.progress("");
}

// 1, 2, 4 and so on, and the last call.
std::vector<int> depths(int calls) {
  std::vector<int> out;
  for (int depth = 1; depth < calls; depth *= 2) out.push_back(depth);
  out.push_back(calls);
  return out;
}

std::string text_of(const std::vector<Line>& lines) {
  const DepthSetup& any = lines.front().setup;
  const Codec& codec = any.collective.codec;
  std::string out = std::string("  accumulated error after L all-reduces, in units of one; ") +
                    (any.activations == Activations::kGaussian ? "Gaussian" : "heavy-tailed") +
                    " activations, " + data_type_name(any.collective.dtype) + ", codes of " +
                    std::to_string(codec.first_leg_bits) + " and " + std::to_string(codec.bits) + " bits" +
                    (any.collective.symmetric_range ? ", symmetric" : "") + ", state " +
                    state_format_name(any.collective.compensation.state) + "\n";
  std::vector<std::string> titles = {">ranks", ">group", "compensation"};
  for (const int depth : depths(any.calls)) titles.push_back(">L=" + std::to_string(depth));
  Table table(titles);
  for (const Line& line : lines) {
    std::vector<std::string> cells = {std::to_string(line.setup.collective.ranks),
                                      std::to_string(line.setup.collective.codec.group), line.mode->name};
    for (const int depth : depths(any.calls))
      cells.push_back(show_number(line.error[static_cast<std::size_t>(depth - 1)]));
    table.row(std::move(cells));
  }
  return out + table.text();
}

std::string json_of(const std::vector<Line>& lines) {
  const DepthSetup& any = lines.front().setup;
  Json out;
  out["schema"] = "echo-tp/simulate/1";
  out["generator"] = {{"name", "echo-tp"}, {"version", ECHO_TP_VERSION}};
  out["activations"] = any.activations == Activations::kGaussian ? "gaussian" : "heavy-tailed";
  out["quantiser"] = any.collective.symmetric_range ? "symmetric" : "extremum";
  out["dtype"] = data_type_name(any.collective.dtype);
  out["elements"] = any.elements;
  out["seed"] = any.seed;
  out["depths"] = depths(any.calls);
  out["rows"] = Json::array();
  for (const Line& line : lines) {
    const Codec& codec = line.setup.collective.codec;
    std::vector<double> errors;
    for (const int depth : depths(any.calls))
      errors.push_back(line.error[static_cast<std::size_t>(depth - 1)]);
    out["rows"].push_back(
        {{"ranks", line.setup.collective.ranks},
         {"codec", {{"bits", codec.bits}, {"group", codec.group}, {"first_leg_bits", codec.first_leg_bits}}},
         {"compensation", line.mode->name},
         {"state", state_format_name(line.setup.collective.compensation.state)},
         {"accumulated_error", errors}});
  }
  return out.dump(2) + "\n";
}

int run(Session& session) {
  Options options;
  OptionSet set(kSimulateCommand);
  set.text("--ranks", options.ranks);
  set.text("--group", options.group);
  set.text("--compensation", options.compensation);
  set.choice("--state", options.state, {"fp32", "fp16", "int8"});
  set.choice("--bits", options.bits, {"4", "8"});
  set.choice("--first-leg-bits", options.first_leg_bits, {"4", "8"});
  set.choice("--quantiser", options.quantiser, {"extremum", "symmetric"});
  set.choice("--activations", options.activations, {"gaussian", "heavy-tailed"});
  set.choice("--dtype", options.dtype, {"bf16", "fp16", "fp32"});
  set.integer("--calls", options.calls, 1, 4096);
  set.integer("--tokens", options.tokens, 1, 1024);
  set.integer("--seed", options.seed, 0, 0x7FFFFFFF);
  set.json_on_stdout(options.json);
  if (const auto code = set.parse(session)) return *code;
  auto lines = lines_of(options);
  if (!lines) return fail(session, kSimulateCommand, lines.error());
  simulate(*lines, *session.terminal);
  session.terminal->out(options.json ? json_of(*lines) : text_of(*lines));
  return kExitOk;
}

}  // namespace

const Command kSimulateCommand = {"simulate", "how far the error grows with depth, by codec and compensation",
                                  kHelp,      false,
                                  kExitUsage, run};

}  // namespace echotp
