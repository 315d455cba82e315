// SPDX-License-Identifier: Apache-2.0
#include "shim/call_range.hpp"

#include "shim/ledger.hpp"

#if defined(ECHO_TP_HAVE_NVTX)
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>

#include <array>
#include <cstddef>
#include <iterator>

namespace echotp {
namespace {

// NVTX's names for these have changed between CUDA 12 and 13; the values have not.
constexpr std::uint64_t kStaticSchemas = std::uint64_t{1} << 24;
constexpr std::uint64_t kReasonSchema = kStaticSchemas + 1;
constexpr std::uint64_t kTransportSchema = kStaticSchemas + 2;
constexpr std::uint64_t kCallSchema = kStaticSchemas + 3;
// Members that are set: of an enumeration name, entries, their number, size, id; of a schema also the type.
constexpr std::uint64_t kEnumFields = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5;
constexpr std::uint64_t kSchemaFields = 1u << 1 | 1u << 2 | 1u << 4 | 1u << 5 | 1u << 6 | 1u << 8;

struct Voice {
  nvtxDomainHandle_t domain = nullptr;  // null: no tool
  nvtxStringHandle_t compressed = nullptr;
  nvtxStringHandle_t forwarded = nullptr;
};

void register_enum(nvtxDomainHandle_t domain, const char* name, std::uint64_t id,
                   const nvtxPayloadEnum_t* entries, std::size_t count) {
  nvtxPayloadEnumAttr_t attributes{};
  attributes.fieldMask = kEnumFields;
  attributes.name = name;
  attributes.entries = entries;
  attributes.numEntries = count;
  attributes.sizeOfEnum = sizeof(std::int32_t);
  attributes.schemaId = id;
  nvtxPayloadEnumRegister(domain, &attributes);
}

nvtxPayloadSchemaEntry_t entry(std::uint64_t type, const char* name, std::size_t offset) {
  nvtxPayloadSchemaEntry_t out{};
  out.type = type;
  out.name = name;
  out.offset = offset;
  return out;
}

// Tools may read what is registered for as long as the process lives.
void register_payload(nvtxDomainHandle_t domain) {
  static const auto reasons = [] {
    std::array<nvtxPayloadEnum_t, static_cast<std::size_t>(Reason::kCount)> out{};
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = {reason_name(static_cast<Reason>(i)), i, 0};
    return out;
  }();
  static const nvtxPayloadEnum_t transports[] = {{"nccl", 0, 0}, {"staged", 1, 0}, {"p2p", 2, 0}};
  register_enum(domain, "reason", kReasonSchema, reasons.data(), reasons.size());
  register_enum(domain, "transport", kTransportSchema, transports, std::size(transports));
  static const nvtxPayloadSchemaEntry_t entries[] = {
      entry(NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "communicator", offsetof(CallRangePayload, communicator)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "count", offsetof(CallRangePayload, count)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "bytes", offsetof(CallRangePayload, bytes)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_INT32, "ranks", offsetof(CallRangePayload, ranks)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_INT32, "rule", offsetof(CallRangePayload, rule)),
      entry(kReasonSchema, "reason", offsetof(CallRangePayload, reason)),
      entry(kTransportSchema, "transport", offsetof(CallRangePayload, transport)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_INT32, "bits", offsetof(CallRangePayload, bits)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_INT32, "group", offsetof(CallRangePayload, group)),
  };
  nvtxPayloadSchemaAttr_t attributes{};
  attributes.fieldMask = kSchemaFields;
  attributes.name = "all-reduce";
  attributes.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
  attributes.entries = entries;
  attributes.numEntries = std::size(entries);
  attributes.payloadStaticSize = sizeof(CallRangePayload);
  attributes.schemaId = kCallSchema;
  nvtxPayloadSchemaRegister(domain, &attributes);
}

const Voice& voice() noexcept {
  static const Voice the_voice = [] {
    Voice out;
    out.domain = nvtxDomainCreateA("echo-tp");
    if (!out.domain) return out;
    register_payload(out.domain);
    out.compressed = nvtxDomainRegisterStringA(out.domain, "all-reduce, compressed");
    out.forwarded = nvtxDomainRegisterStringA(out.domain, "all-reduce, left to NCCL");
    return out;
  }();
  return the_voice;
}

}  // namespace

CallRange::CallRange(const HeldCall& call, const CompressedCall* compressed) noexcept {
  const Voice& voice_now = voice();
  if (!voice_now.domain) return;
  CallRangePayload payload{};
  payload.count = call.raw.count;
  payload.bytes = static_cast<std::uint64_t>(message_bytes(call.raw));
  payload.rule = compressed ? call.decision.rule : -1;
  payload.reason = static_cast<std::int32_t>(compressed ? Reason::kCompressed : call.decision.reason);
  if (call.communicator) {
    payload.communicator = reinterpret_cast<std::uintptr_t>(call.communicator->comm);
    payload.ranks = call.communicator->ranks;
  } else {
    payload.reason = static_cast<std::int32_t>(Reason::kNotSetUp);
  }
  if (compressed) {
    payload.transport = compressed->p2p ? 2 : 1;
    payload.bits = compressed->rule->codec.bits;
    payload.group = compressed->rule->codec.group;
  }
  const nvtxPayloadData_t data{kCallSchema, sizeof payload, &payload};
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  event.message.registered = compressed ? voice_now.compressed : voice_now.forwarded;
  event.payloadType = NVTX_PAYLOAD_TYPE_EXT;
  event.reserved0 = 1;  // number of payloads
  event.payload.ullValue = reinterpret_cast<std::uintptr_t>(&data);
  nvtxDomainRangePushEx(voice_now.domain, &event);
  open_ = true;
}

CallRange::~CallRange() {
  if (open_) nvtxDomainRangePop(voice().domain);
}

}  // namespace echotp

#else

namespace echotp {

CallRange::CallRange(const HeldCall&, const CompressedCall*) noexcept {}
CallRange::~CallRange() = default;

}  // namespace echotp

#endif
