// SPDX-License-Identifier: Apache-2.0
// A real tensor-parallel job in C++, used as a workload: one process a rank, decoder blocks on cuBLAS and
// NCCL, prefill and decode steps. It knows nothing of echo-tp. Prints step times and, as its last line,
// `result: ...`.
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cli/rendezvous.hpp"
#include "tests/jobs/tp_check.hpp"
#include "tests/jobs/tp_model.hpp"
#include "tests/jobs/tp_options.hpp"

namespace tpjob {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// Value below which `share` (0 to 1) of the sorted values lie; NaN when there are none.
double quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

/// Records the decode step. It has run eagerly before, so that nothing is set up during the capture.
cudaGraphExec_t capture_decode(Model& model) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(model.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  model.enqueue_decode();
  check(cudaStreamEndCapture(model.stream(), &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return executable;
}

void examine(const DeviceStatus& status, const Options& options) {
  if (status.mismatches > 0) {
    const std::string text =
        std::to_string(status.mismatches) + " all-reduces gave different bytes on different ranks";
    fail("--verify-ranks", text.c_str());
  }
  if (options.check_finite && status.nonfinite > 0) {
    const std::string text = std::to_string(status.nonfinite) + " NaN or Inf in the hidden states";
    fail("--check-finite", text.c_str());
  }
}

void dump_hidden(const Model& model, std::int64_t bytes, const std::string& path) {
  std::vector<char> data(static_cast<std::size_t>(bytes));
  check(cudaMemcpy(data.data(), model.hidden(), data.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  const std::string part = path + ".part";
  std::FILE* file = std::fopen(part.c_str(), "wb");
  bool written = file != nullptr && std::fwrite(data.data(), 1, data.size(), file) == data.size();
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (!written || std::rename(part.c_str(), path.c_str()) != 0) fail(path.c_str(), "can't be written");
}

void run(const Options& options, const echotp::RankPlace& place, ncclComm_t communicator, ncclComm_t verify) {
  Model model(options, place.rank, place.ranks, communicator, verify);
  const bool prefill = options.mode != Mode::kDecode;
  const bool decode = options.mode != Mode::kPrefill;
  cudaGraphExec_t graph = nullptr;
  std::vector<double> steps, prefills, decodes;
  DeviceStatus status;
  for (int step = -options.warmup; step < options.steps; ++step) {
    nvtxRangePushA("step");
    const auto start = Clock::now();
    auto middle = start;
    if (prefill) {
      model.enqueue_prefill();
      status = model.finish_step();
      middle = Clock::now();
    }
    if (decode) {
      if (graph != nullptr) {
        check(cudaGraphLaunch(graph, model.stream()), "cudaGraphLaunch");
      } else {
        model.enqueue_decode();
      }
      status = model.finish_step();
    }
    const auto end = Clock::now();
    nvtxRangePop();
    examine(status, options);
    if (decode && options.graph && graph == nullptr) graph = capture_decode(model);
    if (step < 0) continue;
    steps.push_back(milliseconds(start, end));
    if (prefill) prefills.push_back(milliseconds(start, middle));
    if (decode) decodes.push_back(milliseconds(middle, end));
    if (place.rank == 0) std::printf("step %d: %.3f ms\n", step, steps.back());
  }
  if (place.rank == 0) {
    if (!options.dump.empty()) dump_hidden(model, model.message_bytes(decode), options.dump);
    std::printf("result: step_ms=%.4f step_p10_ms=%.4f step_p90_ms=%.4f", quantile(steps, 0.5),
                quantile(steps, 0.1), quantile(steps, 0.9));
    if (options.mode == Mode::kBoth)
      std::printf(" prefill_ms=%.4f decode_ms=%.4f", quantile(prefills, 0.5), quantile(decodes, 0.5));
    std::printf(" checksum=%.9e nonfinite=%llu verified=%s ranks=%d steps=%d layers=%d all_reduces=%lld",
                std::sqrt(status.sum_of_squares), status.nonfinite, verify != nullptr ? "yes" : "no",
                place.ranks, options.steps, options.shape.layers,
                static_cast<long long>(model.all_reduces_per_step()));
    if (prefill)
      std::printf(" prefill_message_bytes=%lld", static_cast<long long>(model.message_bytes(false)));
    if (decode) std::printf(" decode_message_bytes=%lld", static_cast<long long>(model.message_bytes(true)));
    std::printf("\n");
  }
  if (graph != nullptr) check(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
}

}  // namespace
}  // namespace tpjob

int main(int argc, char** argv) {
  using namespace tpjob;
  // Lines must reach a pipe as they are printed: whoever watches the job reads them live.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto place = echotp::rank_place();
  if (!place) {
    std::fprintf(stderr, "tp-job: %s\n", place.error().text().c_str());
    return 2;
  }
  g_rank = place->rank;
  const auto options = read_options(argc, argv, place->ranks);
  if (!options) {
    if (place->rank == 0) std::fprintf(stderr, "tp-job: %s\n", options.error().text().c_str());
    return 2;
  }
  if (options->help) {
    if (place->rank == 0) std::fputs(usage().c_str(), stdout);
    return 0;
  }
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  check(cudaSetDevice(place->local_rank % devices), "cudaSetDevice");
  const auto id = echotp::agree_on_id(*place, std::getenv("ECHO_TP_RENDEZVOUS"));
  if (!id) fail("rendezvous", id.error().text().c_str());
  ncclComm_t communicator = nullptr;
  ncclComm_t verify = nullptr;
  check(ncclCommInitRank(&communicator, place->ranks, *id, place->rank), "ncclCommInitRank");
  // Hashes travel over their own communicator: the one under test carries the model's traffic alone.
  if (options->verify_ranks)
    check(ncclCommSplit(communicator, 0, place->rank, &verify, nullptr), "ncclCommSplit");
  run(*options, *place, communicator, verify);
  if (verify != nullptr) check(ncclCommDestroy(verify), "ncclCommDestroy");
  check(ncclCommDestroy(communicator), "ncclCommDestroy");
  return 0;
}
