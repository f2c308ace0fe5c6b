/* libcuda: devices, contexts, modules, streams, copies. Its virtual memory is in virtual_memory.c. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

typedef uint64_t Address;

int cuInit(unsigned flags) { return em_count() ? EM_OK : EM_NO_DEVICE; }
int cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return EM_OK;
}
int cuDeviceGetCount(int *count) {
    *count = em_count();
    return EM_OK;
}
int cuDeviceGet(int *device, int index) {
    *device = index;
    return index >= 0 && index < em_count() ? EM_OK : EM_INVALID_DEVICE;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = em_attribute(attribute, device);
    return EM_OK;
}
int cuDeviceGetName(char *name, int size, int device) {
    snprintf(name, (size_t)size, "%s", em_card()->name);
    return EM_OK;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = em_card()->memory_bytes;
    return EM_OK;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    em_uuid(em_physical(device), uuid);
    return EM_OK;
}
int cuDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02x:00.0", em_physical(device) + 1);
    return EM_OK;
}

/* ---- contexts: the number of the card, plus 64 ------------------------------------------------------------------------------ */

static void *context_of(int device) { return (void *)(long)(64 + device); }

int cuCtxGetCurrent(void **context) {
    *context = context_of(em_device());
    return EM_OK;
}
int cuCtxSetCurrent(void *context) {
    long device = (long)context - 64;
    if (device >= 0 && device < em_count()) em_set_device((int)device);
    return EM_OK;
}
int cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }
int cuCtxPopCurrent_v2(void **context) { return context ? cuCtxGetCurrent(context) : EM_OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    em_context(device);
    *context = context_of(device);
    return EM_OK;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = em_has_context(device); /* torch makes none where it only passes by */
    return EM_OK;
}
int cuCtxGetDevice(int *device) {
    *device = em_device();
    return EM_OK;
}
int cuCtxGetLimit(size_t *value, int limit) {
    *value = 0;
    return EM_OK;
}
int cuCtxSynchronize(void) {
    em_meet(UINT64_MAX);
    return EM_OK;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == EM_OUT_OF_MEMORY ? "out of memory" : "error of the emulated driver";
    return EM_OK;
}
int cuGetErrorName(int error, const char **text) {
    *text = error == EM_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED";
    return EM_OK;
}

/* ---- modules and functions: loaded, and not run ------------------------------------------------------------------------------ */

static int some_handle(void **handle) {
    *handle = (void *)64;
    return EM_OK;
}

int cuModuleLoad(void **module, const char *file) { return some_handle(module); }
int cuModuleLoadData(void **module, const void *image) { return some_handle(module); }
int cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void *values) {
    return some_handle(module);
}
int cuModuleGetFunction(void **function, void *module, const char *name) { return some_handle(function); }
int cuLibraryLoadData(void **library) { return some_handle(library); }
int cuLibraryGetKernel(void **kernel) { return some_handle(kernel); }
int cuLibraryGetModule(void **module) { return some_handle(module); }
int cuKernelGetFunction(void **function) { return some_handle(function); }

/* Attribute 0: threads per block; 4: registers per thread. */
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return EM_OK;
}
int cuOccupancyMaxActiveClusters(int *clusters, void *function, void *configuration) {
    *clusters = em_card()->multiprocessors / 2;
    return EM_OK;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
    *blocks = 2;
    return EM_OK;
}

/* ---- streams and events ------------------------------------------------------------------------------------------------------ */

int cuStreamCreate(void **stream, unsigned flags) {
    *stream = em_stream_create(0);
    return EM_OK;
}
int cuStreamSynchronize(void *stream) {
    em_meet(em_stream(stream)->behind);
    return EM_OK;
}
int cuStreamQuery(void *stream) { return em_stream_query(); }
int cuStreamIsCapturing(void *stream, int *status) {
    *status = em_stream(stream)->capture != 0;
    return EM_OK;
}
int cuStreamGetCaptureInfo_v2(void *stream, int *status) { return cuStreamIsCapturing(stream, status); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    em_stream_wait(stream, event);
    return EM_OK;
}
int cuEventCreate(void **event, unsigned flags) {
    *event = em_event_create();
    return EM_OK;
}
int cuEventRecord(void *event, void *stream) {
    em_event_record(event, stream);
    return EM_OK;
}
int cuEventQuery(void *event) { return em_event_query(event); }
int cuEventSynchronize(void *event) {
    em_meet(((EmEvent *)event)->behind);
    return EM_OK;
}
int cuEventDestroy_v2(void *event) {
    free(event);
    return EM_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------- */

int cuMemAlloc_v2(Address *address, size_t bytes) { return em_malloc(em_device(), bytes, (void **)address); }
int cuMemFree_v2(Address address) { return em_free((void *)address); }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    em_info(em_device(), free_bytes, total_bytes);
    return EM_OK;
}
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    *address = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    if (!*address) return EM_OUT_OF_MEMORY;
    em_pin(*address, bytes);
    return EM_OK;
}
int cuMemFreeHost(void *address) {
    em_unpin(address);
    free(address);
    return EM_OK;
}

int cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) {
    em_copy((void *)to, from, bytes);
    return EM_OK;
}
int cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) {
    em_copy(to, (void *)from, bytes);
    return EM_OK;
}
int cuMemcpyAsync(Address to, Address from, size_t bytes, void *stream) {
    em_copy((void *)to, (void *)from, bytes);
    return EM_OK;
}
int cuMemsetD8_v2(Address to, unsigned char value, size_t bytes) {
    em_set((void *)to, value, bytes);
    return EM_OK;
}
int cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void *stream) {
    return cuMemsetD8_v2(to, value, bytes);
}
int cuMemsetD32_v2(Address to, unsigned value, size_t count) {
    const size_t most = 1 << 20;
    if (!value) em_zero((void *)to, 4 * count);
    for (size_t i = 0; value && count <= most && i < count; i++) ((unsigned *)to)[i] = value;
    return EM_OK;
}
int cuMemsetD32Async(Address to, unsigned value, size_t count, void *stream) { return cuMemsetD32_v2(to, value, count); }

/* Attribute 2: kind of memory (2: of a card); 3, 4: its address there and on the host; 9: the card. */
enum { /* of CUpointer_attribute */
    MEMORY_TYPE = 2,
    DEVICE_POINTER,
    HOST_POINTER,
    SYNC_MEMOPS = 6,
    IS_MANAGED = 8,
    DEVICE_ORDINAL,
    IS_LEGACY_IPC_CAPABLE,
    RANGE_START,
    RANGE_SIZE,
    IS_MAPPED,
};
int cuPointerGetAttribute(void *value, int attribute, Address address) {
    int device;
    void *start;
    size_t bytes;
    if (attribute == DEVICE_POINTER || attribute == HOST_POINTER) {
        memcpy(value, &address, sizeof address);
        return EM_OK;
    }
    if (!em_find((void *)address, &device, &start, &bytes)) return EM_INVALID_VALUE;
    switch (attribute) {
        case MEMORY_TYPE: *(unsigned *)value = 2; break;
        case DEVICE_ORDINAL: *(int *)value = device; break;
        case RANGE_START: *(Address *)value = (Address)start; break;
        case RANGE_SIZE: *(size_t *)value = bytes; break;
        case IS_LEGACY_IPC_CAPABLE:
        case IS_MAPPED: *(unsigned *)value = 1; break;
        case SYNC_MEMOPS:
        case IS_MANAGED: *(unsigned *)value = 0; break;
        default: *(Address *)value = 0;
    }
    return EM_OK;
}
int cuMemGetAddressRange_v2(Address *start, size_t *bytes, Address address) {
    void *found_start;
    size_t found_bytes;
    if (!em_find((void *)address, NULL, &found_start, &found_bytes)) return EM_INVALID_VALUE;
    if (start) *start = (Address)found_start;
    if (bytes) *bytes = found_bytes;
    return EM_OK;
}

/* ---- between processes ------------------------------------------------------------------------------------------------------ */

typedef struct {
    char bytes[EM_HANDLE_BYTES]; /* passed by value */
} Handle;

int cuIpcGetMemHandle(Handle *handle, Address address) { return em_share((void *)address, handle); }
int cuIpcOpenMemHandle_v2(Address *address, Handle handle, unsigned flags) {
    return em_open_shared(&handle, (void **)address);
}
int cuIpcCloseMemHandle(Address address) { return em_return((void *)address); }
int cuIpcGetEventHandle(Handle *handle, void *event) {
    memset(handle, 0, sizeof *handle);
    return EM_OK;
}
int cuIpcOpenEventHandle(void **event, Handle handle) { return cuEventCreate(event, 0); }

/* ---- entry points by name --------------------------------------------------------------------------------------------------- */

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    char newer[160];
    snprintf(newer, sizeof newer, "%s_v2", name);
    *function = dlsym(driver, newer);
    if (!*function) *function = dlsym(driver, name);
    if (!*function) *function = em_unseen_function("libcuda", name);
    if (status) *status = 0;
    return EM_OK;
}
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
int cuGetExportTable(const void **table, const unsigned char *uuid) { return EM_NOT_FOUND; }
