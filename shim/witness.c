/* SPDX-License-Identifier: Apache-2.0
 * The witness: a library that NVTX loads into the job (NVTX_INJECTION64_PATH) and that counts the all-reduces
 * which NCCL reports. NCCL opens a range "ncclAllReduce" in its NVTX domain "NCCL" at every call, in every
 * version that the shim knows, however the job reached it: linked, opened by name, static. Of NVTX's
 * functions these three alone are taken, so that other users of NVTX pay a comparison. C, libc alone; never
 * fails a job. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

#include "shim/coverage.h"

/* Handles that NVTX hands back to us: only their addresses matter. */
static char g_nccl_domain, g_other_domain, g_all_reduce, g_other_text;

static _Atomic(EchoTpCoverage*) g_coverage;
static atomic_int g_tried; /* to open it, in this process */
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;

/* A child counts in a file of its own. */
static void in_forked_child(void) {
  g_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  atomic_store(&g_coverage, NULL);
  atomic_store(&g_tried, 0);
}

static EchoTpCoverage* coverage(void) {
  if (!atomic_load_explicit(&g_tried, memory_order_acquire)) {
    pthread_mutex_lock(&g_lock);
    if (!atomic_load(&g_tried)) {
      atomic_store(&g_coverage, echo_tp_coverage_open(getenv("ECHO_TP_RUN_DIR")));
      atomic_store_explicit(&g_tried, 1, memory_order_release);
    }
    pthread_mutex_unlock(&g_lock);
  }
  return atomic_load_explicit(&g_coverage, memory_order_acquire);
}

static nvtxDomainHandle_t NVTX_API domain_create(const char* name) {
  if (name && strcmp(name, "echo-tp") == 0) return NULL; /* our own ranges: nobody is listening */
  const int nccl = name && strcmp(name, "NCCL") == 0;
  return (nvtxDomainHandle_t)(void*)(nccl ? &g_nccl_domain : &g_other_domain);
}

static nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t domain, const char* text) {
  const int ours = (void*)domain == &g_nccl_domain && text && strcmp(text, "ncclAllReduce") == 0;
  return (nvtxStringHandle_t)(void*)(ours ? &g_all_reduce : &g_other_text);
}

static int is_all_reduce(const nvtxEventAttributes_t* event) {
  if (event->messageType == NVTX_MESSAGE_TYPE_REGISTERED)
    return (const void*)event->message.registered == &g_all_reduce;
  return event->messageType == NVTX_MESSAGE_TYPE_ASCII && event->message.ascii &&
         strcmp(event->message.ascii, "ncclAllReduce") == 0;
}

static int NVTX_API push_range(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if ((void*)domain != &g_nccl_domain || !event) return NVTX_NO_PUSH_POP_TRACKING;
  EchoTpCoverage* counts = coverage();
  if (!counts) return NVTX_NO_PUSH_POP_TRACKING;
  if (!__atomic_load_n(&counts->listening, __ATOMIC_RELAXED))
    __atomic_store_n(&counts->listening, 1, __ATOMIC_RELAXED);
  if (is_all_reduce(event)) echo_tp_coverage_add(&counts->nccl_all_reduces);
  return NVTX_NO_PUSH_POP_TRACKING;
}

/* Called by NVTX for every shared object that uses it; 0: it stays switched off there. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  static atomic_flag watching = ATOMIC_FLAG_INIT;
  const char* off = getenv("ECHO_TP");
  const char* folder = getenv("ECHO_TP_RUN_DIR");
  if (!get_table || !folder || !folder[0] || (off && (strcmp(off, "off") == 0 || strcmp(off, "0") == 0)))
    return 0;
  const NvtxExportTableCallbacks* callbacks = get_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned int size = 0; /* number of entries; the first one is unused */
  if (!callbacks || !callbacks->GetModuleFunctionTable ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) || !table ||
      size <= NVTX_CBID_CORE2_DomainRegisterStringA || size <= NVTX_CBID_CORE2_DomainCreateA ||
      size <= NVTX_CBID_CORE2_DomainRangePushEx)
    return 0;
  if (!atomic_flag_test_and_set(&watching)) pthread_atfork(NULL, NULL, in_forked_child);
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
  *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)register_string;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_range;
  return 1;
}
