/* SPDX-License-Identifier: Apache-2.0
 * A tool that NVTX loads: it writes every range of the domain "echo-tp" to the common log, the payload by the
 * names and offsets that were registered, numbers of an enumeration as its words. */
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>

#include "tests/fakes/fake_log.h"

enum { kEnums = 8 };
static char other_domain, echo_domain;
static const nvtxPayloadSchemaEntry_t* entries;
static size_t entry_count;
static struct {
  uint64_t id;
  const nvtxPayloadEnum_t* entries;
  size_t count;
} enums[kEnums];
static int enum_count;

static nvtxDomainHandle_t NVTX_API domain_create(const char* name) {
  return (nvtxDomainHandle_t)(void*)(strcmp(name, "echo-tp") == 0 ? &echo_domain : &other_domain);
}

/* The text itself serves as its handle; ours are literals. */
static nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t domain, const char* text) {
  (void)domain;
  return (nvtxStringHandle_t)(uintptr_t)text;
}

static uint64_t NVTX_API register_schema(nvtxDomainHandle_t domain,
                                         const nvtxPayloadSchemaAttr_t* attributes) {
  if ((void*)domain != &echo_domain) return 0;
  entries = attributes->entries;
  entry_count = attributes->numEntries;
  return attributes->schemaId;
}

static uint64_t NVTX_API register_enum(nvtxDomainHandle_t domain, const nvtxPayloadEnumAttr_t* attributes) {
  if ((void*)domain != &echo_domain || enum_count == kEnums) return 0;
  enums[enum_count].id = attributes->schemaId;
  enums[enum_count].entries = attributes->entries;
  enums[enum_count++].count = attributes->numEntries;
  return attributes->schemaId;
}

static const char* word_of(uint64_t type, int value) {
  for (int i = 0; i < enum_count; ++i)
    for (size_t j = 0; enums[i].id == type && j < enums[i].count; ++j)
      if ((int)enums[i].entries[j].value == value) return enums[i].entries[j].name;
  return NULL;
}

static void append(char* line, size_t size, const nvtxPayloadSchemaEntry_t* entry, const char* payload) {
  const size_t used = strlen(line);
  uint64_t wide;
  int narrow;
  memcpy(&wide, payload + entry->offset, sizeof wide);
  memcpy(&narrow, payload + entry->offset, sizeof narrow);
  if (entry->type == NVTX_PAYLOAD_ENTRY_TYPE_UINT64)
    snprintf(line + used, size - used, " %s=%llu", entry->name, (unsigned long long)wide);
  else if (word_of(entry->type, narrow))
    snprintf(line + used, size - used, " %s=%s", entry->name, word_of(entry->type, narrow));
  else
    snprintf(line + used, size - used, " %s=%d", entry->name, narrow);
}

static int NVTX_API push_range(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if ((void*)domain != &echo_domain) return 0;
  char line[400];
  snprintf(line, sizeof line, "nvtx push %s:", (const char*)(const void*)event->message.registered);
  const nvtxPayloadData_t* data = (const nvtxPayloadData_t*)(uintptr_t)event->payload.ullValue;
  if (event->payloadType == NVTX_PAYLOAD_TYPE_EXT && event->reserved0 == 1) {
    char payload[128] = {0}; /* reading 8 bytes of the last, narrow member must stay inside */
    memcpy(payload, data->payload, data->size < 96 ? data->size : 96);
    for (size_t i = 0; i < entry_count; ++i)
      if (strcmp(entries[i].name, "communicator") != 0) append(line, sizeof line, &entries[i], payload);
  }
  fake_log("%s", line);
  return 0;
}

static int NVTX_API pop_range(nvtxDomainHandle_t domain) {
  if ((void*)domain == &echo_domain) fake_log("nvtx pop");
  return 0;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const NvtxExportTableCallbacks* callbacks = get_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned int size = 0;
  callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size);
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
  *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)register_string;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_range;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop_range;
  return 1;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t* module) {
  if (module->moduleId != NVTX_EXT_PAYLOAD_MODULEID) return 0;
  intptr_t* slots = module->segments[0].functionSlots;
  slots[NVTX3EXT_CBID_nvtxPayloadSchemaRegister] = (intptr_t)register_schema;
  slots[NVTX3EXT_CBID_nvtxPayloadEnumRegister] = (intptr_t)register_enum;
  return 1;
}
