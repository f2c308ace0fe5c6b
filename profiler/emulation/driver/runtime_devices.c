/* libcudart: devices, their properties, errors. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"
#include "runtime.h"

static __thread int last_error;

int rt_result(int error) {
    if (error) last_error = error;
    return error;
}

int cudaGetLastError(void) {
    int error = last_error;
    last_error = EM_OK;
    return error;
}
int cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorString(int error) {
    switch (error) {
        case EM_OK: return "no error";
        case EM_INVALID_VALUE: return "invalid argument";
        case EM_OUT_OF_MEMORY: return "out of memory";
        case EM_NO_DEVICE: return "no CUDA-capable device is detected";
        case EM_INVALID_DEVICE: return "invalid device ordinal";
        case EM_NOT_READY: return "device not ready";
        case EM_NOT_SUPPORTED: return "operation not supported";
        default: return "error of the emulated driver";
    }
}

const char *cudaGetErrorName(int error) {
    switch (error) {
        case EM_OK: return "cudaSuccess";
        case EM_OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
        case EM_NO_DEVICE: return "cudaErrorNoDevice";
        default: return "cudaErrorEmulated";
    }
}

/* ---- devices --------------------------------------------------------------------------------------------------------------- */

int cudaGetDeviceCount(int *count) {
    *count = em_count();
    return *count ? EM_OK : rt_result(EM_NO_DEVICE);
}

int cudaGetDevice(int *device) {
    *device = em_device();
    return EM_OK;
}

int cudaSetDevice(int device) {
    if (device < 0 || device >= em_count()) return rt_result(EM_INVALID_DEVICE);
    em_set_device(device);
    em_context(device);
    return EM_OK;
}

int cudaDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return EM_OK;
}
int cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

int cudaDeviceSynchronize(void) {
    em_context(em_device());
    em_meet(UINT64_MAX);
    return EM_OK;
}
/* Programs that look the runtime up by name ask for it and do not call it. */
int cudaDeviceReset(void) { return rt_result(EM_NOT_SUPPORTED); }

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    *value = em_attribute(attribute, device);
    return EM_OK;
}

int cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02x:00.0", em_physical(device) + 1);
    return EM_OK;
}

int cudaDeviceGetByPCIBusId(int *device, const char *text) {
    const char *bus = strchr(text, ':');
    long physical = bus ? strtol(bus + 1, NULL, 16) - 1 : -1;
    for (*device = 0; *device < em_count(); ++*device)
        if (em_physical(*device) == physical) return EM_OK;
    return rt_result(EM_INVALID_DEVICE);
}

int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return EM_OK;
}
int cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return EM_OK; }
int cudaDeviceGetP2PAttribute(int *value, int attribute, int source, int target) {
    *value = 1;
    return EM_OK;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return EM_OK;
}

int cudaDeviceGetLimit(size_t *value, int limit) {
    *value = 0;
    return EM_OK;
}

/* ---- properties: one structure, whose offsets differ between the major versions ------------------------------------------ */

#if CUDA_VERSION >= 13000
enum {
    PROPERTIES_BYTES = 1008, MULTIPROCESSORS = 384, INTEGRATED_TO_HOST = 392, CONCURRENT_KERNELS = 560, BUS = 568,
    COPY_ENGINES = 584, UNIFIED_ADDRESSES = 588, BUS_BITS = 592, L2_BYTES = 596, THREADS = 604, PRIORITIES = 608,
    SHARED_PER_MULTIPROCESSOR = 624, REGISTERS_PER_MULTIPROCESSOR = 632, MANAGED = 636, COOPERATIVE = 668,
    SHARED_PER_BLOCK = 672, MOST_BLOCKS = 688, RESERVED_SHARED = 696, POOLS = 720, CLUSTERS = 748,
};
#else
enum {
    PROPERTIES_BYTES = 1032, MULTIPROCESSORS = 388, INTEGRATED_TO_HOST = 400, CONCURRENT_KERNELS = 576, BUS = 584,
    COPY_ENGINES = 600, UNIFIED_ADDRESSES = 604, BUS_BITS = 612, L2_BYTES = 616, THREADS = 624, PRIORITIES = 628,
    SHARED_PER_MULTIPROCESSOR = 640, REGISTERS_PER_MULTIPROCESSOR = 648, MANAGED = 652, COOPERATIVE = 688,
    SHARED_PER_BLOCK = 696, MOST_BLOCKS = 712, RESERVED_SHARED = 720, POOLS = 744, CLUSTERS = 772,
};
#endif
enum { /* the same in both */
    UUID = 256, MEMORY_BYTES = 288, SHARED_DEFAULT = 296, REGISTERS_PER_BLOCK = 304, WARP = 308, THREADS_PER_BLOCK = 320,
    BLOCK_SIZES = 324, GRID_SIZES = 336, CONSTANT_MEMORY = 352, MAJOR = 360, MINOR = 364, TEXTURE_ALIGNMENT = 368,
};

static void put(void *properties, int offset, int value) { memcpy((char *)properties + offset, &value, sizeof value); }
static void put_size(void *properties, int offset, size_t value) {
    memcpy((char *)properties + offset, &value, sizeof value);
}

int cudaGetDeviceProperties(void *p, int device) {
    const EmCard *card = em_card();
    static const int block[3] = {1024, 1024, 64}, grid[3] = {2147483647, 65535, 65535};
    if (device < 0 || device >= em_count()) return rt_result(EM_INVALID_DEVICE);
    memset(p, 0, PROPERTIES_BYTES);
    strcpy(p, card->name);
    em_uuid(em_physical(device), (unsigned char *)p + UUID);
    put_size(p, MEMORY_BYTES, card->memory_bytes);
    put_size(p, SHARED_DEFAULT, 49152);
    put(p, REGISTERS_PER_BLOCK, 65536);
    put(p, WARP, 32);
    put(p, THREADS_PER_BLOCK, 1024);
    memcpy((char *)p + BLOCK_SIZES, block, sizeof block);
    memcpy((char *)p + GRID_SIZES, grid, sizeof grid);
    put_size(p, CONSTANT_MEMORY, 65536);
    put(p, MAJOR, card->major);
    put(p, MINOR, card->minor);
    put_size(p, TEXTURE_ALIGNMENT, 512);
    put(p, MULTIPROCESSORS, card->multiprocessors);
    put(p, INTEGRATED_TO_HOST, 1);
    put(p, CONCURRENT_KERNELS, 1);
    put(p, CONCURRENT_KERNELS + 4, card->ecc);
    put(p, BUS, em_physical(device) + 1);
    put(p, COPY_ENGINES, 3);
    put(p, UNIFIED_ADDRESSES, 1);
    put(p, BUS_BITS, card->bus_bits);
    put(p, L2_BYTES, card->l2_cache_bytes);
    put(p, THREADS, card->threads_per_multiprocessor);
    put(p, PRIORITIES, 1);
    put_size(p, SHARED_PER_MULTIPROCESSOR, (size_t)card->shared_per_multiprocessor);
    put(p, REGISTERS_PER_MULTIPROCESSOR, 65536);
    put(p, MANAGED, 1);
    put(p, COOPERATIVE, 1);
    put_size(p, SHARED_PER_BLOCK, (size_t)card->shared_per_block);
    put(p, MOST_BLOCKS, 32);
    put_size(p, RESERVED_SHARED, 1024);
    put(p, POOLS, 1);
    put(p, CLUSTERS, card->major >= 9);
    return EM_OK;
}
int cudaGetDeviceProperties_v2(void *properties, int device) { return cudaGetDeviceProperties(properties, device); }

/* ---- entry points of the driver ---------------------------------------------------------------------------------------------- */

int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *found) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    int (*look_up)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    if (found) *found = 0;
    return look_up ? look_up(name, function, (int)version, flags, NULL) : rt_result(EM_NOT_FOUND);
}
int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, found);
}
int cudaGetExportTable(const void **table, const void *uuid) {
    *table = NULL;
    return EM_OK;
}
