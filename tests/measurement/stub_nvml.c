/* A libnvidia-ml.so.1 with one GPU, for tests: pynvml's real calls, without a driver.
 * The environment variable STUB_NVML_BROKEN holds "function=code;function=code": those fail with that code.
 * STUB_NVML_USED_MIB is what is in use on the GPU, 3072 without it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UUID "GPU-stub"
#define GIB (1ull << 30)

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
typedef struct { unsigned gpu, memory; } utilisation;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event;

static int device = 1, events_left = 1;

static int answer(const char *function) {
    const char *broken = getenv("STUB_NVML_BROKEN");
    char wanted[128];
    snprintf(wanted, sizeof wanted, "%s=", function);
    const char *found = broken ? strstr(broken, wanted) : NULL;
    return found ? atoi(found + strlen(wanted)) : 0;
}

static unsigned long long used(void) {
    const char *mib = getenv("STUB_NVML_USED_MIB");
    return (mib ? strtoull(mib, NULL, 10) : 3072) << 20;
}

#define ANSWER int code = answer(__func__); if (code) return code

int nvmlInitWithFlags(unsigned flags) { (void)flags; ANSWER; return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : code == 3 ? "Not Supported" : "stub error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { ANSWER; snprintf(text, size, "580.65.06"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { ANSWER; *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { ANSWER; (void)index; *handle = &device; return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { ANSWER; (void)handle; snprintf(text, size, UUID); return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { ANSWER; (void)handle; snprintf(text, size, "Stub 80GB"); return 0; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    ANSWER;
    if (strcmp(uuid, UUID)) return 6;
    *handle = &device;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
    ANSWER;
    (void)handle;
    memory->total = 80 * GIB, memory->reserved = GIB, memory->used = used(), memory->free = 79 * GIB - used();
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {
    ANSWER;
    (void)handle;
    memory->total = 80 * GIB, memory->used = GIB + used(), memory->free = 79 * GIB - used();
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process *processes) {
    ANSWER;
    (void)handle;
    if (!processes) { *count = 2; return 7; }
    memset(processes, 0, *count * sizeof *processes);
    processes[0].pid = 41, processes[0].used = GIB;
    processes[1].pid = 42, processes[1].used = ~0ull;
    *count = 2;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *handle, utilisation *rates) { ANSWER; (void)handle; rates->gpu = 55; rates->memory = 5; return 0; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { ANSWER; (void)handle; *milliwatts = 312500; return 0; }
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *mhz) { ANSWER; (void)handle; *mhz = kind == 1 ? 1980 : 1; return 0; }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) { ANSWER; (void)handle; *celsius = sensor == 0 ? 61 : 0; return 0; }
int nvmlDeviceGetTotalEccErrors(void *handle, int error, int counter, unsigned long long *count) { ANSWER; (void)handle; *count = error == 1 && counter == 0 ? 2 : 99; return 0; }
int nvmlEventSetCreate(void **set) { ANSWER; *set = &events_left; return 0; }
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) { ANSWER; (void)handle; (void)set; return types == 8 ? 0 : 2; }

int nvmlEventSetWait_v2(void *set, event *data, unsigned timeout_ms) {
    ANSWER;
    (void)set;
    (void)timeout_ms;
    if (!events_left) return 10;
    events_left--;
    memset(data, 0, sizeof *data);
    data->type = 8, data->data = 79;
    return 0;
}
