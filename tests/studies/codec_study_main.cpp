// SPDX-License-Identifier: Apache-2.0
// echo-tp-codec-study DUMP [--direction forward|backward] [--elements N] [--json FILE]: runs every codec and
// mode over all-reduce inputs that tests/jobs/tp_dump.py recorded; prints a table, writes JSON.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/studies/codec_study.hpp"

using namespace echotp;
using Json = nlohmann::ordered_json;

namespace {

struct Arguments {
  std::string dump;
  std::string direction = "forward";
  std::string json;
  long long elements = 1 << 18;
};

int complain(const std::string& what) {
  std::fprintf(stderr, "echo-tp-codec-study: %s\n", what.c_str());
  return 2;
}

bool read_arguments(int argc, char** argv, Arguments& out) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (name == "--direction") {
      out.direction = value();
    } else if (name == "--json") {
      out.json = value();
    } else if (name == "--elements") {
      out.elements = std::atoll(value().c_str());
    } else if (out.dump.empty() && name[0] != '-') {
      out.dump = name;
    } else {
      return false;
    }
  }
  return !out.dump.empty() && out.elements > 0 && (out.direction == "forward" || out.direction == "backward");
}

study::Recording load(const Json& description, const Arguments& arguments) {
  study::Recording recording;
  recording.ranks = description.at("ranks");
  recording.hidden = description.at("hidden");
  const Json& direction = description.at("directions").at(arguments.direction);
  const auto calls = direction.at("calls").get<std::size_t>();
  const auto elements = direction.at("elements").get<std::size_t>();
  const std::size_t used = std::min(elements, static_cast<std::size_t>(arguments.elements));
  recording.calls.resize(calls);
  for (int p = 0; p < recording.ranks; ++p) {
    const std::string path =
        arguments.dump + "/" + arguments.direction + "-rank" + std::to_string(p) + ".bf16";
    std::ifstream file(path, std::ios::binary);
    for (std::size_t call = 0; call < calls; ++call) {
      std::vector<std::uint16_t> raw(used);
      file.seekg(static_cast<std::streamoff>(call * elements * 2));
      if (!file.read(reinterpret_cast<char*>(raw.data()), static_cast<std::streamsize>(used * 2)))
        throw std::runtime_error(path + ": expected " + std::to_string(calls * elements * 2) + " bytes");
      recording.calls[call].push_back(std::move(raw));
    }
  }
  return recording;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Json rounded(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double value : values)
    out.push_back(std::isfinite(value) ? Json(std::round(value * 1e5) / 1e5) : Json(nullptr));
  return out;
}

int study_dump(const Arguments& arguments, int argc, char** argv) {
  std::ifstream file(arguments.dump + "/allreduce.json");
  if (!file) return complain(arguments.dump + "/allreduce.json: cannot be read");
  const Json description = Json::parse(file);
  const study::Recording recording = load(description, arguments);
  const std::size_t calls = recording.calls.size();
  std::printf("%zu %s all-reduces of %d ranks, %zu elements of each\n", calls, arguments.direction.c_str(),
              recording.ranks, recording.calls[0][0].size());
  std::printf("%-28s %5s  %-22s  %-40s  %s\n", "", "wire", "SQNR of a call, dB", "accumulated error, RMS",
              "of stream");
  std::printf("%-28s %5s  %6s %6s %7s  ", "option", "bits", "first", "median", "worst");
  std::vector<std::size_t> depths;
  for (std::size_t depth = 1; depth < calls; depth *= 2) depths.push_back(depth);
  depths.push_back(calls);
  for (const std::size_t depth : depths) std::printf("%7s", ("L=" + std::to_string(depth)).c_str());
  std::printf("\n");

  Json out;
  out["schema"] = "echo-tp/codec-study/1";
  for (int i = 0; i < argc; ++i)
    out["command"].push_back(i == 0 ? std::filesystem::path(argv[0]).filename().string() : argv[i]);
  out["recording"] = description;
  out["direction"] = arguments.direction;
  out["elements"] = recording.calls[0][0].size();
  const char* const modes[] = {"none", "owner", "both", "drift"};
  const char* const states[] = {"fp32", "fp16", "int8"};
  const char* const roundings[] = {"symmetric", "asymmetric", "hadamard"};
  const std::vector<study::Option> options = study::all_options();
  // As many at a time as there are processors; the rows come in order.
  const std::size_t at_once = std::max(1u, std::thread::hardware_concurrency());
  std::deque<std::future<study::Outcome>> running;
  std::size_t started = 0;
  for (const study::Option& option : options) {
    for (; started < options.size() && running.size() < at_once; ++started)
      running.push_back(
          std::async(std::launch::async, study::run, std::cref(recording), std::cref(options[started])));
    const study::Outcome outcome = running.front().get();
    running.pop_front();
    const auto worst = *std::min_element(outcome.sqnr_db.begin(), outcome.sqnr_db.end());
    std::printf("%-28s %5.3g  %6.2f %6.2f %7.2f  ", option.name.c_str(), option.wire_bits(),
                outcome.sqnr_db[0], median(outcome.sqnr_db), worst);
    for (const std::size_t depth : depths) std::printf("%7.3f", outcome.accumulated[depth - 1]);
    std::printf("  %8.4f\n", outcome.stream_error.back());
    std::fflush(stdout);
    const Compensation& how = option.compensation;
    out["options"].push_back({{"name", option.name},
                              {"codec",
                               {{"bits", option.codec.bits},
                                {"first_leg_bits", option.codec.first_leg_bits},
                                {"group", option.codec.group},
                                {"rounding", roundings[static_cast<int>(option.rounding)]}}},
                              {"compensation",
                               {{"mode", modes[static_cast<int>(how.mode)]},
                                {"a", rounded({how.a})[0]},
                                {"bf", rounded({how.bf})[0]},
                                {"b", rounded({how.b})[0]},
                                {"bs", rounded({how.bs})[0]},
                                {"state", states[static_cast<int>(how.state)]}}},
                              {"wire_bits", option.wire_bits()},
                              {"sqnr_db", rounded(outcome.sqnr_db)},
                              {"accumulated_error_rms", rounded(outcome.accumulated)},
                              {"stream_error", rounded(outcome.stream_error)}});
  }
  if (arguments.json.empty()) return 0;
  const std::string temporary = arguments.json + ".tmp";
  std::ofstream target(temporary);
  target << out.dump() << "\n";  // a line: some hundred thousand numbers
  target.close();
  if (!target || std::rename(temporary.c_str(), arguments.json.c_str()) != 0)
    return complain(arguments.json + ": cannot be written");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!read_arguments(argc, argv, arguments)) {
    return complain(
        "usage: echo-tp-codec-study DUMP [--direction forward|backward] [--elements N] [--json FILE]");
  }
  try {
    return study_dump(arguments, argc, argv);
  } catch (const std::exception& error) {
    return complain(arguments.dump + ": " + error.what());
  }
}
