// SPDX-License-Identifier: Apache-2.0
// Receipts: what is written is read back, what cannot be read is named, and unknown stays null.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "shim/receipt.hpp"
#include "tests/shim/temp_dir.hpp"

using namespace echotp;

namespace {

Receipt full_receipt() {
  Receipt receipt;
  receipt.host = "node-1";
  receipt.pid = 4711;
  receipt.program = "/usr/bin/python3";
  receipt.mode = "compress";
  receipt.nccl_path = "/lib/libnccl.so.2";
  receipt.nccl_version = 22809;
  receipt.policy_hash = 0x00ff00ff12345678u;
  receipt.errors = {"one", "two"};
  CommunicatorReceipt c;
  c.name = "TP0";
  c.rank = 0;
  c.ranks = 4;
  c.off = "voted_off";
  c.off_detail = "rank 3: no engine";
  c.calls = 100;
  c.compressed = 60;
  c.captured = 7;
  for (std::size_t i = 0; i < c.by_reason.size(); ++i) c.by_reason[i] = static_cast<std::int64_t>(i * 3);
  c.by_bytes = {{1024, {40, 0}}, {1 << 20, {60, 60}}};
  c.payload_bytes = 1;
  c.nccl_wire_bytes = 9007199254740993;  // beyond what a double can hold
  c.echo_wire_bytes = 3;
  c.passes = 4;
  c.state_bytes = 5;
  c.scratch_bytes = 6;
  c.uncompensated = 8;
  c.nonfinite_groups = 9;
  c.transport = "p2p";
  c.p2p_way = "ipc";
  c.p2p_off = "vmm: rank 1: no peer access";
  c.p2p_asked_for = true;
  c.p2p_calls = 3;
  receipt.communicators = {c, CommunicatorReceipt{}};
  return receipt;
}

}  // namespace

TEST_CASE("receipt: what is written is read back") {
  TempDir dir;
  const Receipt written = full_receipt();
  REQUIRE(write_receipt(written, dir.path("")));
  CHECK(dir.names() == std::vector<std::string>{"receipt-node-1-4711.json"});
  std::vector<std::string> problems;
  const auto all = read_receipts(dir.path(""), problems);
  CHECK(problems.empty());
  REQUIRE(all.size() == 1);
  const Receipt& read = all[0];
  CHECK(read.host == written.host);
  CHECK(read.pid == written.pid);
  CHECK(read.program == written.program);
  CHECK(read.mode == written.mode);
  CHECK(read.nccl_path == written.nccl_path);
  CHECK(read.nccl_version == written.nccl_version);
  CHECK(read.policy_hash == written.policy_hash);
  CHECK(read.errors == written.errors);
  REQUIRE(read.communicators.size() == 2);
  const CommunicatorReceipt& c = read.communicators[0];
  const CommunicatorReceipt& w = written.communicators[0];
  CHECK(c.name == w.name);
  CHECK(c.rank == 0);
  CHECK(c.ranks == 4);
  CHECK(c.off == w.off);
  CHECK(c.off_detail == w.off_detail);
  CHECK(c.calls == 100);
  CHECK(c.compressed == 60);
  CHECK(c.captured == 7);
  CHECK(c.by_reason == w.by_reason);
  REQUIRE(c.by_bytes.size() == 2);
  CHECK(c.by_bytes.at(1024).calls == 40);
  CHECK(c.by_bytes.at(1 << 20).compressed == 60);
  CHECK(c.payload_bytes == 1);
  CHECK(c.nccl_wire_bytes == 9007199254740993);
  CHECK(c.echo_wire_bytes == 3);
  CHECK(c.passes == 4);
  CHECK(c.state_bytes == 5);
  CHECK(c.scratch_bytes == 6);
  CHECK(c.uncompensated == 8);
  CHECK(c.nonfinite_groups == 9);
  CHECK(c.transport == "p2p");
  CHECK(c.p2p_way == "ipc");
  CHECK(c.p2p_off == "vmm: rank 1: no peer access");
  CHECK(c.p2p_asked_for);
  CHECK(c.p2p_calls == 3);
  CHECK(read.communicators[1].rank == -1);
  CHECK(read.communicators[1].ranks == 0);
  CHECK(read.communicators[1].off.empty());
}

TEST_CASE("receipt: unknown is null, never zero or empty text") {
  Receipt receipt;
  receipt.communicators.resize(1);
  const auto json = nlohmann::json::parse(receipt_json(receipt));
  CHECK(json["schema"] == "echo-tp/receipt/1");
  for (const char* key : {"host", "program", "mode", "nccl_path", "nccl_version", "policy_hash"}) {
    CAPTURE(key);
    CHECK(json.at(key).is_null());
  }
  for (const char* key : {"name", "rank", "ranks", "off", "off_detail", "transport"}) {
    CAPTURE(key);
    CHECK(json["communicators"][0].at(key).is_null());
  }
  CHECK(json["communicators"][0]["calls"] == 0);
}

TEST_CASE("receipt: a later one of the same process replaces the earlier") {
  TempDir dir;
  Receipt receipt = full_receipt();
  REQUIRE(write_receipt(receipt, dir.path("")));
  receipt.errors = {"later"};
  REQUIRE(write_receipt(receipt, dir.path("")));
  std::vector<std::string> problems;
  const auto all = read_receipts(dir.path(""), problems);
  REQUIRE(all.size() == 1);
  CHECK(all[0].errors == std::vector<std::string>{"later"});
}

TEST_CASE("receipt: names that are no UTF-8, or no file name, do no harm") {
  TempDir dir;
  Receipt receipt = full_receipt();
  receipt.host = "../a b/\xff";
  receipt.program = "\xff\xfe program";
  receipt.communicators[0].name = "T\x01P\xc0";
  REQUIRE(write_receipt(receipt, dir.path("")));
  CHECK(dir.names() == std::vector<std::string>{"receipt-.._a_b__-4711.json"});
  std::vector<std::string> problems;
  CHECK(read_receipts(dir.path(""), problems).size() == 1);
  CHECK(problems.empty());
}

TEST_CASE("receipt: what cannot be read is named and left out") {
  TempDir dir;
  REQUIRE(write_receipt(full_receipt(), dir.path("")));
  const std::string good = receipt_json(full_receipt());
  dir.write("receipt-b-1.json", good.substr(0, good.size() / 2));
  dir.write("receipt-b-2.json", R"({"schema":"echo-tp/run/1"})");
  dir.write("receipt-b-3.json", "");
  dir.write("receipt-b-4.json", R"({"schema":"echo-tp/receipt/1","communicators":[{"calls":-1}]})");
  dir.write("receipt-b-5.json",
            R"({"schema":"echo-tp/receipt/1","communicators":[{"by_reason":{"newer":1}}]})");
  dir.write("receipt-b-6.json", R"({"schema":"echo-tp/receipt/1","communicators":[],"policy_hash":"0x12"})");
  dir.write("receipt-b-7.json.99.0.part", "{");
  dir.write("receipt-b-8.json", R"({"schema":"echo-tp/receipt/1","communicators":[],"later_key":1})");
  dir.write("note.txt", "not ours");
  std::vector<std::string> problems;
  const auto all = read_receipts(dir.path(""), problems);
  CHECK(all.size() == 2);
  REQUIRE(problems.size() == 7);
  for (int i = 1; i <= 7; ++i) {
    const std::string name = "receipt-b-" + std::to_string(i) + ".json";
    CAPTURE(name);
    CHECK(std::count_if(problems.begin(), problems.end(),
                        [&](const std::string& p) { return p.find(name) != std::string::npos; }) == 1);
  }
}

TEST_CASE("receipt: folders that are not there") {
  std::vector<std::string> problems;
  CHECK(read_receipts("/no/such/folder", problems).empty());
  CHECK(problems == std::vector<std::string>{"/no/such/folder: No such file or directory"});
  const auto written = write_receipt(full_receipt(), "/no/such/folder");
  REQUIRE(!written);
  CHECK(written.error().text().find("/no/such/folder/receipt-node-1-4711.json: cannot be written") == 0);
}
