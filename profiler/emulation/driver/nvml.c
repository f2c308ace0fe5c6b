/* libnvidia-ml: the cards of the machine, their memory, and the processes on them. Handles are the index plus 64. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

/* NVML has error numbers of its own. */
enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };

typedef unsigned long long Bytes;
#define MOST_PROCESSES 64

static int initialised;

static int index_of(void *device) { return (int)((long)device - 64); }
static void *handle_of(int index) { return (void *)(64L + index); }
static Bytes reserved(void) { return em_card()->nvml_memory_bytes - em_card()->memory_bytes; }

static Bytes used_on(int index) {
    unsigned pids[MOST_PROCESSES];
    uint64_t bytes[MOST_PROCESSES];
    Bytes total = 0;
    int count = em_processes(index, pids, bytes, MOST_PROCESSES);
    for (int i = 0; i < count; i++) total += bytes[i];
    return total;
}

static int text(char *to, unsigned size, const char *from) {
    snprintf(to, size, "%s", from);
    return OK;
}

int nvmlInit_v2(void) {
    initialised++;
    return OK;
}
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) {
    if (initialised > 0) initialised--;
    return OK;
}

const char *nvmlErrorString(int error) {
    switch (error) {
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        default: return "error of the emulated driver";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) { return text(version, size, "580.0.emulated"); }
int nvmlSystemGetNVMLVersion(char *version, unsigned size) { return text(version, size, "13.580.emulated"); }
int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = CUDA_VERSION;
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* ---- devices --------------------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!initialised) return UNINITIALIZED;
    *count = (unsigned)em_count_present();
    return OK;
}
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = handle_of((int)index);
    return (int)index < em_count_present() ? OK : INVALID_ARGUMENT;
}
int nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (!initialised) return UNINITIALIZED;
    for (int index = 0; index < em_count_present(); index++) {
        char own[48];
        em_uuid_text(index, own, sizeof own);
        *device = handle_of(index);
        if (!strcmp(own, uuid)) return OK;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    const char *bus = strchr(bus_id, ':');
    long index = bus ? strtol(bus + 1, NULL, 16) - 1 : 0;
    *device = handle_of((int)index);
    return index >= 0 && index < em_count_present() ? OK : NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) {
    em_uuid_text(index_of(device), uuid, size);
    return OK;
}
int nvmlDeviceGetName(void *device, char *name, unsigned size) { return text(name, size, em_card()->name); }
int nvmlDeviceGetIndex(void *device, unsigned *index) {
    *index = (unsigned)index_of(device);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    *major = em_card()->major;
    *minor = em_card()->minor;
    return OK;
}

/* ---- memory ----------------------------------------------------------------------------------------------------------------- */

typedef struct {
    Bytes total, free, used;
} Memory;

typedef struct {
    unsigned version;
    Bytes total, reserved, free, used;
} Memory2;

/* The first version counts the driver's own part as used, the second one separately. */
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    memory->total = em_card()->nvml_memory_bytes;
    memory->used = used_on(index_of(device)) + reserved();
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *memory) {
    memory->total = em_card()->nvml_memory_bytes;
    memory->reserved = reserved();
    memory->used = used_on(index_of(device));
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}

/* ---- processes -------------------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned pid;
    Bytes bytes;
} Process;

typedef struct {
    unsigned pid;
    Bytes bytes;
    unsigned gpu_instance, compute_instance;
} Process2;

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process2 *processes) {
    unsigned pids[MOST_PROCESSES], room = *count;
    uint64_t bytes[MOST_PROCESSES];
    *count = (unsigned)em_processes(index_of(device), pids, bytes, MOST_PROCESSES);
    if (!processes || room < *count) return *count ? TOO_SMALL : OK;
    for (unsigned i = 0; i < *count; i++) processes[i] = (Process2){pids[i], bytes[i], ~0u, ~0u};
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, Process2 *processes) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes);
}
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, Process *processes) {
    Process2 found[MOST_PROCESSES];
    unsigned room = *count;
    *count = MOST_PROCESSES;
    nvmlDeviceGetComputeRunningProcesses_v3(device, count, found);
    if (!processes || room < *count) return *count ? TOO_SMALL : OK;
    for (unsigned i = 0; i < *count; i++) processes[i] = (Process){found[i].pid, found[i].bytes};
    return OK;
}

/* ---- state: a card at rest ----------------------------------------------------------------------------------------------- */

int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]) {
    rates[0] = rates[1] = 0;
    return OK;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    *milliwatts = 70000;
    return OK;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    *mhz = 1980;
    return OK;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) {
    *degrees = 30;
    return OK;
}
int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *after_restart) {
    *now = *after_restart = (unsigned)em_card()->ecc;
    return em_card()->ecc ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, Bytes *count) {
    *count = 0;
    return em_card()->ecc ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *after_restart) {
    *now = *after_restart = 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    *count = 0;
    return OK;
}
int nvmlDeviceGetPersistenceMode(void *device, int *mode) {
    *mode = 1;
    return OK;
}
int nvmlDeviceGetCpuAffinity(void *device, unsigned words, unsigned long *mask) {
    memset(mask, 255, words * sizeof *mask);
    return OK;
}

int nvmlEventSetCreate(void **set) {
    *set = handle_of(0);
    return OK;
}
int nvmlDeviceRegisterEvents(void *device, Bytes kinds, void *set) { return OK; }
int nvmlEventSetWait_v2(void *set, void *event, unsigned ms) { return TIMEOUT; }
int nvmlEventSetWait(void *set, void *event, unsigned ms) { return TIMEOUT; }
int nvmlEventSetFree(void *set) { return OK; }

/* ---- links between cards ---------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    *active = link < 18;
    return link < 18 ? OK : INVALID_ARGUMENT;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetP2PStatus(void *device, void *peer, int kind, int *status) {
    *status = 0;
    return OK;
}
