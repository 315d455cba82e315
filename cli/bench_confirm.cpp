// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_confirm.hpp"

#include <nlohmann/json.hpp>
#include <set>

namespace echotp {
namespace {

using Json = nlohmann::ordered_json;

const CommunicatorReceipt* communicator_of(const std::vector<Receipt>& receipts, const std::string& name) {
  for (const Receipt& receipt : receipts)
    for (const CommunicatorReceipt& communicator : receipt.communicators)
      if (communicator.name == name) return &communicator;
  return nullptr;
}

// Empty: the receipt confirms the entry.
std::string why_not(const CommunicatorReceipt& receipt, const std::string& transport, std::int64_t bytes) {
  if (!receipt.off.empty()) return receipt.off_detail.empty() ? receipt.off : receipt.off_detail;
  if (transport == "p2p" && receipt.transport != "p2p")
    return "the ranks did not agree on p2p" + (receipt.p2p_off.empty() ? "" : ": " + receipt.p2p_off);
  // A candidate's communicator knows one rule.
  if (receipt.p2p_calls != (transport == "p2p" ? receipt.compressed : 0))
    return "of " + std::to_string(receipt.compressed) + " calls " + std::to_string(receipt.p2p_calls) +
           " went p2p";
  const auto size = receipt.by_bytes.find(bytes);
  if (size == receipt.by_bytes.end() || size->second.compressed < size->second.calls)
    return "not every call of this size was compressed";
  return "";
}

}  // namespace

Result<std::string> confirmed_costs(const std::string& document, const std::vector<Receipt>& receipts,
                                    std::vector<std::string>& doubts) {
  try {
    Json costs = Json::parse(document);
    if (receipts.empty()) return document;
    std::set<std::string> said;
    const auto doubt = [&](const std::string& line) {
      if (said.insert(line).second) doubts.push_back(line);
    };
    for (Json& entry : costs.at("entries")) {
      const std::string name = entry.at("candidate");
      const CommunicatorReceipt* receipt = communicator_of(receipts, name);
      if (receipt == nullptr) {
        doubt(name + ": no receipt confirms its transport");
        continue;
      }
      const std::string why = why_not(*receipt, entry.at("transport"), entry.at("bytes").get<std::int64_t>());
      if (!why.empty()) {
        for (const char* key : {"echo_us", "ratio", "wire_bytes"}) entry[key] = nullptr;
        entry["why_not"] = why;
        doubt(name + ": " + why);
      }
      if (receipt->uncompensated > 0) {
        entry["uncompensated_calls"] = receipt->uncompensated;
        doubt(name + ": " + std::to_string(receipt->uncompensated) +
              " calls found no memory for the error estimates and ran without");
      }
    }
    return costs.dump(2) + "\n";
  } catch (const Json::exception& error) {
    return Error{ErrorCode::kSystem, error.what(), "cost table"};
  }
}

}  // namespace echotp
