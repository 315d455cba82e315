// SPDX-License-Identifier: Apache-2.0
// The real engine over a backend that agrees to everything and moves nothing: what a forwarded call costs,
// measured without a GPU.
#include <cstring>

#include "shim/backend.hpp"
#include "shim/setup.hpp"

namespace echotp {
namespace {

class NoPeers final : public P2pRank {
 public:
  Status offer(const P2pNeeds&, P2pRecord&) noexcept override {
    return Error{ErrorCode::kSystem, "no peers here", ""};
  }
  Status connect(const P2pTerms&, std::span<const P2pRecord>, double) noexcept override { return Unit{}; }
  Status open_window(P2pWay, P2pRecord&) noexcept override { return Unit{}; }
  Status import_windows(std::span<const P2pRecord>, double) noexcept override { return Unit{}; }
  Status self_test(double) noexcept override { return Unit{}; }
  void settle(bool) noexcept override {}
  void close_windows() noexcept override {}
};

class IdleBackend final : public Backend {
 public:
  Status prepare(SetupRecord& mine) noexcept override {
    mine.chunk_elements = 1 << 20;
    return Unit{};
  }
  Status gather(std::span<const std::byte> mine, std::span<std::byte> all, double) noexcept override {
    for (std::size_t rank = 0; rank * mine.size() < all.size(); ++rank) {
      std::byte* record = all.data() + rank * mine.size();
      std::memcpy(record, mine.data(), mine.size());
      if (mine.size() != sizeof(SetupRecord)) continue;
      SetupRecord changed;
      std::memcpy(&changed, record, sizeof changed);
      changed.pid += static_cast<int>(rank);
      std::memcpy(record, &changed, sizeof changed);
    }
    return Unit{};
  }
  Status self_test(double) noexcept override { return Unit{}; }
  Status reserve(int, bool) noexcept override { return Unit{}; }
  P2pRank& p2p() noexcept override { return p2p_; }
  CaptureInfo capture(void*) noexcept override { return {}; }
  CallOutcome all_reduce(const CompressedCall&) noexcept override { return {}; }
  int join(void*, void*) noexcept override { return kNcclSuccess; }
  void end(bool) noexcept override {}
  int async_error() noexcept override { return kNcclSuccess; }
  BackendFacts facts() const noexcept override { return {}; }
  bool idle() noexcept override { return true; }

 private:
  NoPeers p2p_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const EchoTpNccl&, void*, int, int) {
  return std::make_unique<IdleBackend>();
}

}  // namespace echotp
