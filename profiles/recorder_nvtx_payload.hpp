// SPDX-License-Identifier: Apache-2.0
// PAYLOADS: what NCCL attaches to its NVTX ranges, decoded by the field names that NCCL registers, so that
// its struct layouts may change from version to version.
#pragma once

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace echotp::recorder {

/// A field that the recorder reads; size 0: the schema has no such field.
struct PayloadField {
  std::uint64_t offset = 0;
  std::uint32_t size = 0;
};

/// What one schema tells. Never freed, so that it is looked up without a lock.
struct PayloadSchema {
  std::uint64_t id = 0;
  PayloadField communicator, bytes, op, ranks, rank;
  PayloadSchema* next = nullptr;
};

/// One payload with its schema. Values are missing where the schema lacks the field or the payload is too
/// short.
class Payload {
 public:
  Payload() = default;
  Payload(const PayloadSchema* schema, const nvtxPayloadData_t* data) : schema_(schema), data_(data) {}
  /// True for collectives: their schemas have a message size.
  bool is_call() const { return schema_ && schema_->bytes.size != 0; }
  std::optional<std::int64_t> communicator() const {
    return schema_ ? read(schema_->communicator) : std::nullopt;
  }
  std::optional<std::int64_t> bytes() const { return schema_ ? read(schema_->bytes) : std::nullopt; }
  std::optional<std::int64_t> op() const { return schema_ ? read(schema_->op) : std::nullopt; }
  std::optional<std::int64_t> ranks() const { return schema_ ? read(schema_->ranks) : std::nullopt; }
  std::optional<std::int64_t> rank() const { return schema_ ? read(schema_->rank) : std::nullopt; }

 private:
  std::optional<std::int64_t> read(const PayloadField& field) const;
  const PayloadSchema* schema_ = nullptr;
  const nvtxPayloadData_t* data_ = nullptr;
};

/// The schemas of one NVTX domain. Any thread may add and find.
class PayloadSchemas {
 public:
  /// Remembers a schema and answers its id: the caller's static one, or a new one.
  std::uint64_t add(const nvtxPayloadSchemaAttr_t& attr);
  /// The first of `count` payloads whose schema is known; an empty one otherwise.
  Payload find(const nvtxPayloadData_t* data, std::size_t count) const;

 private:
  std::atomic<PayloadSchema*> first_{nullptr};
};

/// The id of a schema or enumeration that is registered without being read.
std::uint64_t schema_id(const nvtxPayloadSchemaAttr_t& attr);
std::uint64_t enum_id(const nvtxPayloadEnumAttr_t& attr);

}  // namespace echotp::recorder
