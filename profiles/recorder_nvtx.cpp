// SPDX-License-Identifier: Apache-2.0
// NVTX: NCCL describes every call in the payload of a range in its domain; other domains carry the job's own
// step markers. Payloads are decoded by the field names that NCCL registers, so that its struct layouts may
// change.
#include "profiles/recorder_nvtx.hpp"

#include <algorithm>
#include <atomic>
#include <cwchar>
#include <mutex>
#include <string>
#include <unordered_map>

#include "profiles/recorder.hpp"
#include "profiles/recorder_calls.hpp"
#include "profiles/recorder_nvtx_payload.hpp"

namespace echotp::recorder {
namespace {

constexpr std::size_t kOpenRanges = 65536;

struct Domain {
  std::string name;
  bool nccl = false;
  PayloadSchemas schemas;
};

/// A registered string, with what it means in NCCL's domain. Never freed.
struct Text {
  std::string text;
  Frame::Kind kind = Frame::Kind::kRange;
  const char* function = nullptr;
};

std::atomic<const void*> nccl_address{nullptr};
std::atomic<std::uint64_t> next_range{1};

struct OpenRange {
  std::string name;
  std::int64_t start_ns;
  std::uint32_t thread;
};
std::mutex& open_ranges_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::unordered_map<std::uint64_t, OpenRange>& open_ranges() {
  static auto* ranges = new std::unordered_map<std::uint64_t, OpenRange>;
  return *ranges;
}

std::string narrow(const wchar_t* wide) {
  std::string out;
  for (; wide && *wide && out.size() < 2048; ++wide) {
    const auto point = static_cast<std::uint32_t>(*wide);
    if (point < 0x80) {
      out += static_cast<char>(point);
    } else if (point < 0x800) {
      out += static_cast<char>(0xC0 | point >> 6);
      out += static_cast<char>(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
      out += static_cast<char>(0xE0 | point >> 12);
      out += static_cast<char>(0x80 | (point >> 6 & 0x3F));
      out += static_cast<char>(0x80 | (point & 0x3F));
    } else {
      out += static_cast<char>(0xF0 | (point >> 18 & 0x07));
      out += static_cast<char>(0x80 | (point >> 12 & 0x3F));
      out += static_cast<char>(0x80 | (point >> 6 & 0x3F));
      out += static_cast<char>(0x80 | (point & 0x3F));
    }
  }
  return out;
}

Domain* as_domain(nvtxDomainHandle_t handle) {
  return reinterpret_cast<Domain*>(handle);
}

Frame::Kind nccl_kind(const std::string& name) {
  if (name == "ncclGroupStart") return Frame::Kind::kGroupStart;
  if (name == "ncclGroupEnd" || name == "ncclGroupSimulateEnd") return Frame::Kind::kGroupEnd;
  // Not CommSplit and CommShrink: NCCL 2.28 puts the parent's rank and size into their payload.
  if (name == "ncclCommInitRank" || name == "ncclCommInitRankConfig" || name == "ncclCommInitRankScalable") {
    return Frame::Kind::kCommInit;
  }
  return Frame::Kind::kNcclOther;
}

Text* make_text(std::string text) {
  auto* made = new Text;
  made->text = std::move(text);
  made->kind = nccl_kind(made->text);
  made->function = immortal_function(made->text);
  return made;
}

/// The message of an event; `held` keeps it where it is not a registered string.
const Text* message_of(const nvtxEventAttributes_t& event, Text& held) {
  if (event.messageType == NVTX_MESSAGE_TYPE_REGISTERED && event.message.registered) {
    return reinterpret_cast<const Text*>(event.message.registered);
  }
  if (event.messageType == NVTX_MESSAGE_TYPE_ASCII && event.message.ascii) held.text = event.message.ascii;
  if (event.messageType == NVTX_MESSAGE_TYPE_UNICODE && event.message.unicode)
    held.text = narrow(event.message.unicode);
  held.kind = nccl_kind(held.text);
  held.function = immortal_function(held.text);
  return &held;
}

Payload payload_of(const Domain& domain, const nvtxEventAttributes_t& event) {
  if (event.payloadType != NVTX_PAYLOAD_TYPE_EXT) return {};
  const auto* data =
      reinterpret_cast<const nvtxPayloadData_t*>(static_cast<std::uintptr_t>(event.payload.ullValue));
  return domain.schemas.find(data, static_cast<std::size_t>(std::max(event.reserved0, 0)));
}

void learn_membership(Recorder& recorder, const Payload& payload) {
  const auto hash = static_cast<std::uint64_t>(payload.communicator().value_or(0));
  const std::int64_t ranks = payload.ranks().value_or(-1);
  const std::int64_t rank = payload.rank().value_or(-1);
  if (hash == 0 || ranks < 1 || rank < 0 || rank >= ranks) return;
  recorder.learn_communicator(hash, "", static_cast<std::int32_t>(ranks), static_cast<std::int32_t>(rank));
}

Frame push_nccl(Domain& domain, const nvtxEventAttributes_t& event) {
  Frame frame;
  frame.domain = &domain;
  Text held;
  const Text& text = *message_of(event, held);
  frame.kind = text.kind;
  const Payload payload = payload_of(domain, event);
  const bool call = payload.is_call();
  // A group is where NCCL is entered first when all calls are grouped: its depth must not be missed.
  if (!call && text.kind != Frame::Kind::kCommInit && text.kind != Frame::Kind::kGroupStart) return frame;
  Recorder* recorder = Recorder::start();
  ThreadLog* log = recorder ? recorder->log() : nullptr;
  if (!log) return frame;
  if (!call) {
    learn_membership(*recorder, payload);
    return frame;
  }
  frame.kind = Frame::Kind::kNcclCall;
  if (!recorder->nvtx_calls_seen.load(std::memory_order_relaxed)) {
    recorder->nvtx_calls_seen = true;
    recorder->tier("nvtx");
    recorder->learn_nccl(nccl_address.load());
  }
  CallFacts facts;
  facts.function = text.function;
  facts.communicator = static_cast<std::uint64_t>(payload.communicator().value_or(0));
  facts.bytes = payload.bytes().value_or(-1);
  if (payload.op()) facts.op = op_name(static_cast<std::uint64_t>(*payload.op()));
  nvtx_call_begin(*recorder, *log, facts, now_ns());
  return frame;
}

int push(Domain* domain, const nvtxEventAttributes_t* event) {
  if (!event) return NVTX_NO_PUSH_POP_TRACKING;
  if (domain && domain->nccl) {
    const Frame frame = push_nccl(*domain, *event);
    Recorder* recorder = Recorder::active();
    ThreadLog* log = recorder ? recorder->log() : nullptr;
    if (!log) return NVTX_NO_PUSH_POP_TRACKING;
    log->frames.push_back(frame);
    return static_cast<int>(log->frames.size()) - 1;
  }
  Recorder* recorder = Recorder::active();
  ThreadLog* log = recorder ? recorder->log() : nullptr;
  if (!log) return NVTX_NO_PUSH_POP_TRACKING;
  Text held;
  Frame frame;
  frame.domain = domain;
  frame.name = recorder->range_name(message_of(*event, held)->text);
  frame.start_ns = now_ns();
  log->frames.push_back(frame);
  return static_cast<int>(log->frames.size()) - 1;
}

void push_range(Recorder& recorder, ThreadLog& log, std::uint32_t name, std::uint32_t thread,
                std::int64_t start_ns) {
  HostRecord record;
  record.kind = HostRecord::Kind::kRange;
  record.range = {name, thread, start_ns, now_ns()};
  recorder.push(log, record);
}

int pop(Domain* domain, const nvtxPayloadData_t* data, std::size_t count) {
  Recorder* recorder = Recorder::active();
  ThreadLog* log = Recorder::existing_log();
  if (!recorder || !log) return NVTX_NO_PUSH_POP_TRACKING;
  // Domains have stacks of their own: the last range of this one, not simply the last.
  const auto last = std::find_if(log->frames.rbegin(), log->frames.rend(),
                                 [&](const Frame& f) { return f.domain == domain; });
  if (last == log->frames.rend()) return NVTX_NO_PUSH_POP_TRACKING;
  const Frame frame = *last;
  log->frames.erase(std::next(last).base());
  switch (frame.kind) {
    case Frame::Kind::kRange:
      push_range(*recorder, *log, frame.name, log->thread, frame.start_ns);
      break;
    case Frame::Kind::kNcclCall:
      nvtx_call_end(*recorder, *log, now_ns());
      break;
    case Frame::Kind::kGroupStart:
      nvtx_group_start_end(*log);
      break;
    case Frame::Kind::kGroupEnd:
      nvtx_group_end_end(*recorder, *log, now_ns());
      break;
    case Frame::Kind::kCommInit:
      learn_membership(*recorder, domain->schemas.find(data, count));
      break;
    case Frame::Kind::kNcclOther:
      break;
  }
  return static_cast<int>(log->frames.size());
}

nvtxRangeId_t start_range(const nvtxEventAttributes_t* event) {
  Recorder* recorder = Recorder::active();
  ThreadLog* log = recorder ? recorder->log() : nullptr;
  if (!event || !log) return 0;
  Text held;
  const std::uint64_t id = next_range.fetch_add(1);
  const std::lock_guard<std::mutex> lock(open_ranges_mutex());
  if (open_ranges().size() < kOpenRanges)
    open_ranges()[id] = {message_of(*event, held)->text, now_ns(), log->thread};
  return id;
}

void end_range(nvtxRangeId_t id) {
  Recorder* recorder = Recorder::active();
  ThreadLog* log = recorder ? recorder->log() : nullptr;
  if (!log) return;
  OpenRange range;
  {
    const std::lock_guard<std::mutex> lock(open_ranges_mutex());
    const auto found = open_ranges().find(id);
    if (found == open_ranges().end()) return;
    range = found->second;
    open_ranges().erase(found);
  }
  push_range(*recorder, *log, recorder->range_name(range.name), range.thread, range.start_ns);
}

nvtxEventAttributes_t event_of(const char* message) {
  nvtxEventAttributes_t event{};
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = message;
  return event;
}

nvtxEventAttributes_t event_of(const wchar_t* message) {
  nvtxEventAttributes_t event{};
  event.messageType = NVTX_MESSAGE_TYPE_UNICODE;
  event.message.unicode = message;
  return event;
}

// --- what NVTX calls: nothing may be thrown through it
// --------------------------------------------------------------------

template <class Body, class Value>
Value guarded(Value otherwise, Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return otherwise;
  }
}

int NVTX_API on_push(const nvtxEventAttributes_t* event) {
  return guarded(NVTX_NO_PUSH_POP_TRACKING, [&] { return push(nullptr, event); });
}
int NVTX_API on_push_a(const char* message) {
  return guarded(NVTX_NO_PUSH_POP_TRACKING, [&] {
    const auto event = event_of(message);
    return push(nullptr, &event);
  });
}
int NVTX_API on_push_w(const wchar_t* message) {
  return guarded(NVTX_NO_PUSH_POP_TRACKING, [&] {
    const auto event = event_of(message);
    return push(nullptr, &event);
  });
}
int NVTX_API on_pop() {
  return guarded(NVTX_NO_PUSH_POP_TRACKING, [] { return pop(nullptr, nullptr, 0); });
}
int NVTX_API on_domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  return guarded(NVTX_NO_PUSH_POP_TRACKING, [&] { return push(as_domain(domain), event); });
}
int NVTX_API on_domain_pop(nvtxDomainHandle_t domain) {
  return guarded(NVTX_NO_PUSH_POP_TRACKING, [&] { return pop(as_domain(domain), nullptr, 0); });
}
nvtxRangeId_t NVTX_API on_start(const nvtxEventAttributes_t* event) {
  return guarded(nvtxRangeId_t{0}, [&] { return start_range(event); });
}
nvtxRangeId_t NVTX_API on_start_a(const char* message) {
  return guarded(nvtxRangeId_t{0}, [&] {
    const auto event = event_of(message);
    return start_range(&event);
  });
}
nvtxRangeId_t NVTX_API on_start_w(const wchar_t* message) {
  return guarded(nvtxRangeId_t{0}, [&] {
    const auto event = event_of(message);
    return start_range(&event);
  });
}
void NVTX_API on_end(nvtxRangeId_t id) {
  guarded(0, [&] {
    end_range(id);
    return 0;
  });
}
nvtxRangeId_t NVTX_API on_domain_start(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  return on_start(event);
}
void NVTX_API on_domain_end(nvtxDomainHandle_t, nvtxRangeId_t id) {
  on_end(id);
}

nvtxDomainHandle_t make_domain(std::string name, const void* caller) {
  auto* domain = new Domain;
  domain->name = std::move(name);
  domain->nccl = domain->name == "NCCL";
  if (domain->nccl) nccl_address = caller;
  return reinterpret_cast<nvtxDomainHandle_t>(domain);
}
nvtxDomainHandle_t NVTX_API on_domain_create_a(const char* name) {
  const void* caller = __builtin_return_address(0);
  return guarded(nvtxDomainHandle_t{}, [&] { return make_domain(name ? name : "", caller); });
}
nvtxDomainHandle_t NVTX_API on_domain_create_w(const wchar_t* name) {
  const void* caller = __builtin_return_address(0);
  return guarded(nvtxDomainHandle_t{}, [&] { return make_domain(narrow(name), caller); });
}
nvtxStringHandle_t NVTX_API on_register_a(nvtxDomainHandle_t, const char* text) {
  return guarded(nvtxStringHandle_t{},
                 [&] { return reinterpret_cast<nvtxStringHandle_t>(make_text(text ? text : "")); });
}
nvtxStringHandle_t NVTX_API on_register_w(nvtxDomainHandle_t, const wchar_t* text) {
  return guarded(nvtxStringHandle_t{},
                 [&] { return reinterpret_cast<nvtxStringHandle_t>(make_text(narrow(text))); });
}

// --- payload extension
// --------------------------------------------------------------------------------------------------

std::uint64_t NVTX_API on_schema(nvtxDomainHandle_t handle, const nvtxPayloadSchemaAttr_t* attr) {
  return guarded(std::uint64_t{0}, [&]() -> std::uint64_t {
    if (!attr) return 0;
    Domain* domain = as_domain(handle);
    return domain && domain->nccl ? domain->schemas.add(*attr) : schema_id(*attr);
  });
}
std::uint64_t NVTX_API on_enum(nvtxDomainHandle_t, const nvtxPayloadEnumAttr_t* attr) {
  return attr ? enum_id(*attr) : 0;
}
int NVTX_API on_push_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* data, std::size_t count) {
  nvtxEventAttributes_t event{};
  event.payloadType = NVTX_PAYLOAD_TYPE_EXT;
  event.reserved0 = static_cast<std::int32_t>(count);
  event.payload.ullValue = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data));
  return on_domain_push(domain, &event);
}
int NVTX_API on_pop_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* data, std::size_t count) {
  return guarded(NVTX_NO_PUSH_POP_TRACKING, [&] { return pop(as_domain(domain), data, count); });
}
std::uint8_t NVTX_API on_is_enabled(nvtxDomainHandle_t) {
  return 1;
}

template <class Function>
void set(NvtxFunctionTable table, unsigned size, unsigned id, Function function) {
  if (id < size && table[id]) *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

template <class Function>
void set(const nvtxExtModuleSegment_t& segment, std::size_t id, Function function) {
  if (id < segment.slotCount) segment.functionSlots[id] = reinterpret_cast<std::intptr_t>(function);
}

}  // namespace

bool fill_nvtx_tables(const void* (*get_export_table)(std::uint32_t)) {
  if (!get_export_table) return false;
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (!callbacks || callbacks->struct_size < sizeof *callbacks) return false;
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) && table) {
    set(table, size, NVTX_CBID_CORE_RangePushEx, on_push);
    set(table, size, NVTX_CBID_CORE_RangePushA, on_push_a);
    set(table, size, NVTX_CBID_CORE_RangePushW, on_push_w);
    set(table, size, NVTX_CBID_CORE_RangePop, on_pop);
    set(table, size, NVTX_CBID_CORE_RangeStartEx, on_start);
    set(table, size, NVTX_CBID_CORE_RangeStartA, on_start_a);
    set(table, size, NVTX_CBID_CORE_RangeStartW, on_start_w);
    set(table, size, NVTX_CBID_CORE_RangeEnd, on_end);
  }
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) || !table) return false;
  set(table, size, NVTX_CBID_CORE2_DomainRangePushEx, on_domain_push);
  set(table, size, NVTX_CBID_CORE2_DomainRangePop, on_domain_pop);
  set(table, size, NVTX_CBID_CORE2_DomainRangeStartEx, on_domain_start);
  set(table, size, NVTX_CBID_CORE2_DomainRangeEnd, on_domain_end);
  set(table, size, NVTX_CBID_CORE2_DomainRegisterStringA, on_register_a);
  set(table, size, NVTX_CBID_CORE2_DomainRegisterStringW, on_register_w);
  set(table, size, NVTX_CBID_CORE2_DomainCreateA, on_domain_create_a);
  set(table, size, NVTX_CBID_CORE2_DomainCreateW, on_domain_create_w);
  return true;
}

bool fill_nvtx_extension(void* module_info) {
  const auto* module = static_cast<const nvtxExtModuleInfo_t*>(module_info);
  if (!module || module->moduleId != NVTX_EXT_PAYLOAD_MODULEID || module->segmentsCount < 1 ||
      !module->segments)
    return false;
  const nvtxExtModuleSegment_t& segment = module->segments[0];
  if (!segment.functionSlots) return false;
  set(segment, NVTX3EXT_CBID_nvtxPayloadSchemaRegister, on_schema);
  set(segment, NVTX3EXT_CBID_nvtxPayloadEnumRegister, on_enum);
  set(segment, NVTX3EXT_CBID_nvtxRangePushPayload, on_push_payload);
  set(segment, NVTX3EXT_CBID_nvtxRangePopPayload, on_pop_payload);
  set(segment, NVTX3EXT_CBID_nvtxDomainIsEnabled, on_is_enabled);
  return true;
}

}  // namespace echotp::recorder
