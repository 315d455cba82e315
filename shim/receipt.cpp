// SPDX-License-Identifier: Apache-2.0
// Writer and reader of receipts.
#include "shim/receipt.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "shim/json_reader.hpp"

namespace echotp {
namespace {

using Json = nlohmann::ordered_json;
constexpr JsonLimits kReceiptLimits{.max_bytes = 64u << 20, .max_depth = 16};
constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

std::string hash_text(std::uint64_t hash) {
  char text[19];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(hash));
  return text;
}

Json write_communicator(const CommunicatorReceipt& communicator) {
  Json out;
  out["name"] = text_or_null(communicator.name);
  out["rank"] = communicator.rank < 0 ? Json(nullptr) : Json(communicator.rank);
  out["ranks"] = communicator.ranks <= 0 ? Json(nullptr) : Json(communicator.ranks);
  out["off"] = text_or_null(communicator.off);
  out["off_detail"] = text_or_null(communicator.off_detail);
  out["transport"] = text_or_null(communicator.transport);
  out["p2p_way"] = text_or_null(communicator.p2p_way);
  out["p2p_off"] = text_or_null(communicator.p2p_off);
  out["p2p_asked_for"] = communicator.p2p_asked_for;
  out["p2p_calls"] = communicator.p2p_calls;
  out["calls"] = communicator.calls;
  out["compressed"] = communicator.compressed;
  out["captured"] = communicator.captured;
  out["uncompensated"] = communicator.uncompensated;
  out["by_reason"] = Json::object();
  for (std::size_t i = 0; i < communicator.by_reason.size(); ++i) {
    if (communicator.by_reason[i] != 0)
      out["by_reason"][reason_name(static_cast<Reason>(i))] = communicator.by_reason[i];
  }
  out["by_bytes"] = Json::array();
  for (const auto& [bytes, size] : communicator.by_bytes) {
    out["by_bytes"].push_back({{"bytes", bytes}, {"calls", size.calls}, {"compressed", size.compressed}});
  }
  out["payload_bytes"] = communicator.payload_bytes;
  out["nccl_wire_bytes"] = communicator.nccl_wire_bytes;
  out["echo_wire_bytes"] = communicator.echo_wire_bytes;
  out["passes"] = communicator.passes;
  out["state_bytes"] = communicator.state_bytes;
  out["scratch_bytes"] = communicator.scratch_bytes;
  out["nonfinite_groups"] = communicator.nonfinite_groups;
  return out;
}

// Reads members of one object; a missing or null one leaves the default, which means unknown.
struct Members {
  const JsonValue& object;
  JsonErrors& errors;

  std::optional<JsonValue> known(std::string_view key) const {
    auto value = object.get(key);
    if (value && value->is_null()) value.reset();
    return value;
  }
  void read(std::string_view key, std::string& out) const {
    if (const auto value = known(key)) out = value->string(errors).value_or("");
  }
  template <class Integer>
  void read(std::string_view key, Integer& out) const {
    if (const auto value = known(key)) {
      out = static_cast<Integer>(value->integer(errors, 0, std::numeric_limits<Integer>::max()).value_or(0));
    }
  }
};

std::optional<std::size_t> reason_of(std::string_view name) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(Reason::kCount); ++i) {
    if (name == reason_name(static_cast<Reason>(i))) return i;
  }
  return std::nullopt;
}

CommunicatorReceipt read_communicator(const JsonValue& value, JsonErrors& errors) {
  CommunicatorReceipt out;
  if (!value.expect_object(errors)) return out;
  const Members members{value, errors};
  members.read("name", out.name);
  members.read("rank", out.rank);
  members.read("ranks", out.ranks);
  members.read("off", out.off);
  members.read("off_detail", out.off_detail);
  members.read("transport", out.transport);
  members.read("p2p_way", out.p2p_way);
  members.read("p2p_off", out.p2p_off);
  if (const auto asked = members.known("p2p_asked_for"))
    out.p2p_asked_for = asked->boolean(errors).value_or(false);
  members.read("p2p_calls", out.p2p_calls);
  members.read("calls", out.calls);
  members.read("compressed", out.compressed);
  members.read("captured", out.captured);
  members.read("uncompensated", out.uncompensated);
  members.read("payload_bytes", out.payload_bytes);
  members.read("nccl_wire_bytes", out.nccl_wire_bytes);
  members.read("echo_wire_bytes", out.echo_wire_bytes);
  members.read("passes", out.passes);
  members.read("state_bytes", out.state_bytes);
  members.read("scratch_bytes", out.scratch_bytes);
  members.read("nonfinite_groups", out.nonfinite_groups);
  if (const auto reasons = members.known("by_reason"); reasons && reasons->expect_object(errors)) {
    for (const std::string& name : reasons->keys()) {
      const JsonValue count = *reasons->get(name);
      if (const auto reason = reason_of(name)) {
        out.by_reason[*reason] = count.integer(errors, 0, kMaxInteger).value_or(0);
      } else {
        count.complain(errors, "is of an unknown reason; written by another version of echo-tp?");
      }
    }
  }
  if (const auto sizes = members.known("by_bytes"); sizes && sizes->expect_array(errors, "an array")) {
    for (std::size_t i = 0; i < sizes->size(); ++i) {
      const JsonValue item = sizes->at(i);
      if (!item.expect_object(errors)) continue;
      std::int64_t bytes = 0;
      SizeClass size;
      const Members fields{item, errors};
      fields.read("bytes", bytes);
      fields.read("calls", size.calls);
      fields.read("compressed", size.compressed);
      out.by_bytes[bytes] = size;
    }
  }
  return out;
}

std::uint64_t read_hash(const JsonValue& value, JsonErrors& errors) {
  const std::string text = value.string(errors).value_or("");
  std::uint64_t hash = 0;
  const bool shape = text.size() == 18 && text.starts_with("0x") &&
                     text.find_first_not_of("0123456789abcdef", 2) == std::string::npos;
  if (shape) {
    hash = std::stoull(text, nullptr, 16);
  } else if (value.is_string()) {
    value.complain(errors, "expected 0x and 16 hexadecimal digits");
  }
  return hash;
}

Result<Receipt> read_receipt(const std::string& path) {
  const auto document = JsonDocument::read(path, kReceiptLimits);
  if (!document) return document.error();
  JsonErrors errors;
  Receipt out;
  const JsonValue root = document->root();
  if (check_schema(root, errors, "receipt")) {
    const Members members{root, errors};
    members.read("host", out.host);
    members.read("pid", out.pid);
    members.read("program", out.program);
    members.read("mode", out.mode);
    members.read("nccl_path", out.nccl_path);
    members.read("nccl_version", out.nccl_version);
    if (const auto hash = members.known("policy_hash")) out.policy_hash = read_hash(*hash, errors);
    if (const auto list = members.known("errors");
        list && list->expect_array(errors, "an array of strings")) {
      for (std::size_t i = 0; i < list->size(); ++i)
        out.errors.push_back(list->at(i).string(errors).value_or(""));
    }
    if (const auto list = root.need(errors, "communicators");
        list && list->expect_array(errors, "an array")) {
      for (std::size_t i = 0; i < list->size(); ++i)
        out.communicators.push_back(read_communicator(list->at(i), errors));
    }
  }
  if (!errors.empty()) return errors.first();
  return out;
}

}  // namespace

std::string receipt_json(const Receipt& receipt) {
  Json out;
  out["schema"] = "echo-tp/receipt/1";
  out["host"] = text_or_null(receipt.host);
  out["pid"] = receipt.pid;
  out["program"] = text_or_null(receipt.program);
  out["mode"] = text_or_null(receipt.mode);
  out["nccl_path"] = text_or_null(receipt.nccl_path);
  out["nccl_version"] = receipt.nccl_version <= 0 ? Json(nullptr) : Json(receipt.nccl_version);
  out["policy_hash"] = receipt.policy_hash == 0 ? Json(nullptr) : Json(hash_text(receipt.policy_hash));
  out["errors"] = receipt.errors;
  out["communicators"] = Json::array();
  for (const CommunicatorReceipt& communicator : receipt.communicators) {
    out["communicators"].push_back(write_communicator(communicator));
  }
  // Names and paths may be anything; a document is UTF-8.
  return out.dump(2, ' ', false, nlohmann::detail::error_handler_t::replace) + "\n";
}

Status write_receipt(const Receipt& receipt, const std::string& dir) {
  std::string host = receipt.host;
  std::replace_if(
      host.begin(), host.end(), [](unsigned char c) { return c <= ' ' || c == '/' || c >= 0x7f; }, '_');
  return write_text_file(dir + "/receipt-" + host + "-" + std::to_string(receipt.pid) + ".json",
                         receipt_json(receipt));
}

std::vector<Receipt> read_receipts(const std::string& dir, std::vector<std::string>& problems) {
  std::vector<Receipt> receipts;
  std::vector<std::string> paths;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(dir, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with("receipt-")) continue;
    if (name.ends_with(".json")) paths.push_back(at->path().string());
    if (name.ends_with(".part"))
      problems.push_back(at->path().string() + ": unfinished: its process ended while writing it");
  }
  if (failed) problems.push_back(dir + ": " + failed.message());
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    auto receipt = read_receipt(path);
    if (receipt) {
      receipts.push_back(*std::move(receipt));
    } else {
      problems.push_back(receipt.error().text());
    }
  }
  return receipts;
}

}  // namespace echotp
