/* SPDX-License-Identifier: Apache-2.0
 * Jobs that are not linked with NCCL:
 *   dlsym LIBRARY SCENARIO            dlopen (by name or path, RTLD_LOCAL) and dlsym of every function
 *   default LIBRARY SCENARIO          dlopen RTLD_GLOBAL, then dlsym(RTLD_DEFAULT)
 *   plugin LIBRARY SCENARIO           a library that is itself linked with NCCL
 *   plugins A B SCENARIO              two of them, with an NCCL each
 *   copies A B                        two NCCL copies by dlsym in turn
 *   stranger LOOSE A B                a library that calls nccl names without being linked with either copy
 *   lookups LIBRARY                   what dlsym gives out, and dlerror after it
 *   symbols LIBRARY                   every name of nccl_symbols.def: real, ours or missing
 *   probe LIBRARY                     likewise through RTLD_DEFAULT, RTLD_NEXT and the program's own handle
 *   lookalike LIBRARY                 a library with an ncclAllReduce that is not NCCL
 *   nothing LOOSE                     a library that calls ncclGroupStart where there is no NCCL
 *   other                             resolves and calls puts, nothing else */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/shim/interpose_scenarios.h"

static Api api_of(void* handle) {
  Api nccl;
#define FIND(name, parameters, arguments, since) nccl.name = (int(*) parameters)dlsym(handle, "nccl" #name);
  FAKE_NCCL_FUNCTIONS(FIND)
  nccl.calls_broadcast = (int (*)(void*))dlsym(handle, "fake_nccl_calls_broadcast");
  nccl.set_callback = (void (*)(int (*)(void*)))dlsym(handle, "fake_nccl_set_callback");
  return nccl;
}

static void* must_open(const char* path, int flags) {
  void* handle = dlopen(path, flags);
  if (!handle) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
  return handle;
}

static int run_plugin(const char* path, const char* scenario) {
  int (*run)(const char*) =
      (int (*)(const char*))dlsym(must_open(path, RTLD_NOW | RTLD_LOCAL), "run_scenario");
  return run ? run(scenario) : 3;
}

static int copies(const char* first, const char* second) {
  const Api a = api_of(must_open(first, RTLD_NOW | RTLD_LOCAL));
  const Api b = api_of(must_open(second, RTLD_NOW | RTLD_LOCAL));
  EXPECT(a.AllReduce != b.AllReduce);
  void* of_a = NULL;
  void* of_b = NULL;
  TRY(make(&a, &of_a));
  TRY(make(&b, &of_b));
  TRY(a.GroupStart());
  TRY(sum(&a, of_a, 1)); /* in a's group */
  TRY(sum(&b, of_b, 2)); /* b has no group open: it may not wait for a's */
  TRY(b.GroupStart());
  TRY(sum(&b, of_b, 3));
  TRY(b.GroupEnd());
  TRY(a.GroupEnd());
  TRY(sum(&b, of_b, 4));
  TRY(a.CommDestroy(of_a));
  TRY(b.CommDestroy(of_b));
  return 0;
}

static int stranger(const char* loose, const char* first, const char* second) {
  must_open(first, RTLD_NOW | RTLD_LOCAL);
  const Api b = api_of(must_open(second, RTLD_NOW | RTLD_LOCAL));
  int (*use)(void*) = (int (*)(void*))dlsym(must_open(loose, RTLD_LAZY | RTLD_LOCAL), "loose_use");
  void* comm = NULL;
  TRY(make(&b, &comm));
  TRY(use(comm));
  return 0;
}

static int nothing(const char* loose) {
  int (*start)(void) = (int (*)(void))dlsym(must_open(loose, RTLD_LAZY | RTLD_LOCAL), "loose_group_start");
  const int first = start();
  printf("result %d\n", first);
  return 0;
}

/* Where a lookup through `handle` leads; `nccl` is the library's own handle. */
static void report(void* handle, void* nccl, const char* name) {
  char twin[80];
  snprintf(twin, sizeof twin, "p%s", name);
  dlerror();
  void* found = dlsym(handle, name);
  const char* error = dlerror();
  const char* what = "missing";
  if (!found) what = error && strstr(error, name) ? "missing" : "missing without dlerror";
  if (found) what = error ? "found with dlerror" : found == dlsym(nccl, twin) ? "real" : "ours";
  printf("%s %s\n", name, what);
}

static int symbols(const char* path) {
  void* nccl = must_open(path, RTLD_NOW | RTLD_LOCAL);
  int (*get_version)(int*) = (int (*)(int*))dlsym(nccl, "ncclGetVersion");
  int version = 0;
  TRY(get_version(&version));
  printf("version %d\n", version);
#define NCCL_SYMBOL(name, since) report(nccl, nccl, "nccl" #name);
#include "tests/abi/nccl_symbols.def"
  return 0;
}

static int probe(const char* path) {
  void* nccl = must_open(path, RTLD_NOW | RTLD_GLOBAL);
  void* const handles[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_NOW)};
  for (int i = 0; i < 3; ++i) {
#define NCCL_SYMBOL(name, since) report(handles[i], nccl, "nccl" #name);
#include "tests/abi/nccl_symbols.def"
  }
  return 0;
}

static int lookups(const char* path) {
  void* handle = must_open(path, RTLD_NOW | RTLD_LOCAL);
  void* sum_symbol = dlsym(handle, "ncclAllReduce");
  EXPECT(dlerror() == NULL);
  printf("AllReduce %s\n", sum_symbol == dlsym(handle, "pncclAllReduce") ? "real" : "ours");
  printf("CommRegister %s\n",
         dlsym(handle, "ncclCommRegister") == dlsym(handle, "pncclCommRegister") ? "real" : "ours");
  printf("FutureThing %s\n",
         dlsym(handle, "ncclFutureThing") == dlsym(handle, "pncclFutureThing") ? "real" : "ours");
  dlerror();
  printf("CommShrink %s\n", dlsym(handle, "ncclCommShrink") ? "there" : "missing");
  const char* error = dlerror();
  printf("error %s\n", error && strstr(error, "ncclCommShrink") ? "names it" : "none");
  printf("Nope %s\n", dlsym(handle, "ncclNope") ? "there" : "missing");
  error = dlerror();
  printf("error %s\n", error && strstr(error, "ncclNope") ? "names it" : "none");
  printf("same %s\n", dlsym(handle, "ncclAllReduce") == sum_symbol ? "yes" : "no");
  return 0;
}

int main(int argc, char** argv) {
  const char* how = argc > 1 ? argv[1] : "";
  if (strcmp(how, "other") == 0) {
    int (*say)(const char*) = (int (*)(const char*))dlsym(RTLD_DEFAULT, "puts");
    return say("hello") < 0;
  }
  if (argc == 3 && strcmp(how, "nothing") == 0) return nothing(argv[2]);
  if (argc == 3 && strcmp(how, "symbols") == 0) return symbols(argv[2]) != 0;
  if (argc == 3 && strcmp(how, "probe") == 0) return probe(argv[2]);
  if (argc == 3 && strcmp(how, "lookups") == 0) return lookups(argv[2]) != 0;
  if (argc == 3 && strcmp(how, "lookalike") == 0) {
    int (*sum_symbol)(void) = (int (*)(void))dlsym(must_open(argv[2], RTLD_NOW), "ncclAllReduce");
    Dl_info info;
    printf("result %d\n", sum_symbol());
    printf("its own %s\n",
           dladdr((void*)sum_symbol, &info) && strstr(info.dli_fname, "lookalike") ? "yes" : "no");
    return 0;
  }
  if (argc == 4 && strcmp(how, "copies") == 0) return copies(argv[2], argv[3]) != 0;
  if (argc == 5 && strcmp(how, "stranger") == 0) return stranger(argv[2], argv[3], argv[4]) != 0;
  if (argc == 4 && strcmp(how, "plugin") == 0) return run_plugin(argv[2], argv[3]);
  if (argc == 5 && strcmp(how, "plugins") == 0)
    return run_plugin(argv[2], argv[4]) + run_plugin(argv[3], argv[4]);
  if (argc != 4) return 2;
  const int global = strcmp(how, "default") == 0;
  void* handle = must_open(argv[2], RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
  const Api nccl = api_of(global ? RTLD_DEFAULT : handle);
  return run_scenario_of(&nccl, argv[3]) != 0;
}
