// SPDX-License-Identifier: Apache-2.0
// Schemas and payloads of NCCL's NVTX domain; see recorder_nvtx_payload.hpp.
#include "profiles/recorder_nvtx_payload.hpp"

#include <cstring>
#include <string_view>

namespace echotp::recorder {
namespace {

// Values of NVTX's headers whose names changed between toolkits.
constexpr std::uint64_t kSchemaHasEntries = 1 << 4;
constexpr std::uint64_t kSchemaHasCount = 1 << 5;
constexpr std::uint64_t kSchemaHasId = 1 << 8;
constexpr std::uint64_t kEnumHasId = 1 << 5;
constexpr std::uint64_t kStaticIds = 1 << 24;
constexpr std::uint64_t kDynamicIds = std::uint64_t{1} << 32;

std::uint64_t new_id() {
  static std::atomic<std::uint64_t> next{kDynamicIds};
  return next.fetch_add(1);
}

std::uint32_t size_of_entry(std::uint64_t type) {
  switch (type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR:
    case NVTX_PAYLOAD_ENTRY_TYPE_UCHAR:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT8:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT8:
    case NVTX_PAYLOAD_ENTRY_TYPE_BYTE:
      return 1;
    case NVTX_PAYLOAD_ENTRY_TYPE_SHORT:
    case NVTX_PAYLOAD_ENTRY_TYPE_USHORT:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT16:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT16:
      return 2;
    case NVTX_PAYLOAD_ENTRY_TYPE_INT:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT:
      return 4;
    default:
      // Registered enumerations (NCCL's reduction operator) are C enums; all other types in use are 8 bytes.
      return type >= kStaticIds ? 4 : 8;
  }
}

PayloadField* field_named(PayloadSchema& schema, std::string_view name) {
  if (name == "NCCL communicator ID") return &schema.communicator;
  if (name == "Message size [bytes]") return &schema.bytes;
  if (name == "Reduction operation") return &schema.op;
  if (name == "No. of ranks") return &schema.ranks;
  if (name == "Rank") return &schema.rank;
  return nullptr;
}

}  // namespace

std::optional<std::int64_t> Payload::read(const PayloadField& field) const {
  if (field.size == 0 || !data_->payload || field.offset + field.size > data_->size) return std::nullopt;
  const auto* from = static_cast<const unsigned char*>(data_->payload) + field.offset;
  if (field.size == 8) {
    std::int64_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  if (field.size == 4) {
    std::int32_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  return std::nullopt;
}

std::uint64_t PayloadSchemas::add(const nvtxPayloadSchemaAttr_t& attr) {
  const std::uint64_t id = schema_id(attr);
  if (!(attr.fieldMask & kSchemaHasEntries) || !attr.entries) return id;
  auto* schema = new PayloadSchema;
  schema->id = id;
  const std::size_t count = attr.fieldMask & kSchemaHasCount ? attr.numEntries : 0;
  std::uint64_t natural = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const nvtxPayloadSchemaEntry_t& entry = attr.entries[i];
    const std::uint32_t size = size_of_entry(entry.type);
    natural = (natural + size - 1) / size * size;
    const PayloadField field{i > 0 && entry.offset == 0 ? natural : entry.offset, size};
    natural = field.offset + size;
    if (PayloadField* known = entry.name ? field_named(*schema, entry.name) : nullptr) *known = field;
  }
  schema->next = first_.load(std::memory_order_relaxed);
  while (!first_.compare_exchange_weak(schema->next, schema, std::memory_order_release)) {
  }
  return id;
}

Payload PayloadSchemas::find(const nvtxPayloadData_t* data, std::size_t count) const {
  for (std::size_t i = 0; data && i < count; ++i) {
    const PayloadSchema* schema = first_.load(std::memory_order_acquire);
    while (schema && schema->id != data[i].schemaId) schema = schema->next;
    if (schema) return {schema, &data[i]};
  }
  return {};
}

std::uint64_t schema_id(const nvtxPayloadSchemaAttr_t& attr) {
  return attr.fieldMask & kSchemaHasId && attr.schemaId != 0 ? attr.schemaId : new_id();
}

std::uint64_t enum_id(const nvtxPayloadEnumAttr_t& attr) {
  return attr.fieldMask & kEnumHasId && attr.schemaId != 0 ? attr.schemaId : new_id();
}

}  // namespace echotp::recorder
