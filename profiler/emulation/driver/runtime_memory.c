/* libcudart: memory and copies. */
#include <stdlib.h>
#include <string.h>

#include "emulated.h"
#include "runtime.h"

int cudaMalloc(void **address, size_t bytes) { return rt_result(em_malloc(em_device(), bytes, address)); }
int cudaMallocManaged(void **address, size_t bytes, unsigned flags) { return cudaMalloc(address, bytes); }
int cudaMallocAsync(void **address, size_t bytes, void *stream) { return cudaMalloc(address, bytes); }
int cudaMallocFromPoolAsync(void **address, size_t bytes, void *pool, void *stream) {
    return cudaMalloc(address, bytes);
}

/* Freeing waits for the card; in the order of a stream it does not. */
int cudaFree(void *address) {
    em_context(em_device());
    em_synchronised();
    return rt_result(em_free(address));
}
int cudaFreeAsync(void *address, void *stream) { return rt_result(em_free(address)); }

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    em_info(em_device(), free_bytes, total_bytes);
    return EM_OK;
}

int cudaDeviceGetDefaultMemPool(void **pool, int device) {
    *pool = (void *)(long)(device + 1);
    return EM_OK;
}
int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
    *(uint64_t *)value = 0;
    return EM_OK;
}
int cudaMemPoolCreate(void **pool, const void *properties) {
    *pool = calloc(1, 64);
    return EM_OK;
}

/* ---- memory of the host --------------------------------------------------------------------------------------------------- */

int cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    em_context(em_device());
    *address = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    if (!*address) return rt_result(EM_OUT_OF_MEMORY);
    em_pin(*address, bytes);
    return EM_OK;
}
int cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
int cudaFreeHost(void *address) {
    em_unpin(address);
    free(address);
    return EM_OK;
}
int cudaHostRegister(void *address, size_t bytes, unsigned flags) {
    em_pin(address, bytes);
    return EM_OK;
}
int cudaHostUnregister(void *address) {
    em_unpin(address);
    return EM_OK;
}
int cudaHostGetDevicePointer(void **device_address, void *address, unsigned flags) {
    *device_address = address;
    return EM_OK;
}
int cudaHostGetFlags(unsigned *flags, void *address) {
    *flags = 0;
    return EM_OK;
}

/* The structure: kind of memory (0 unregistered, 1 host, 2 card), card, address there, address on the host. */
int cudaPointerGetAttributes(void *attributes, const void *address) {
    struct {
        int kind, device;
        const void *on_card, *on_host;
    } found = {0, em_device(), NULL, NULL};
    if (em_find(address, &found.device, NULL, NULL)) {
        found.kind = 2;
        found.on_card = address;
    } else if (em_is_pinned(address)) {
        found.kind = 1;
        found.on_card = found.on_host = address;
    }
    memcpy(attributes, &found, sizeof found);
    return EM_OK;
}

/* ---- copies ---------------------------------------------------------------------------------------------------------------- */

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    em_copy(to, from, bytes);
    return EM_OK;
}
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    em_copy(to, from, bytes);
    em_synchronised();
    return EM_OK;
}
int cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
    em_copy(to, from, bytes);
    return EM_OK;
}
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream) {
    em_copy(to, from, bytes);
    return EM_OK;
}
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                      int kind, void *stream) {
    for (size_t row = 0; row < height; row++)
        em_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return EM_OK;
}
int cudaMemset(void *to, int value, size_t bytes) {
    em_set(to, value, bytes);
    return EM_OK;
}
int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) { return cudaMemset(to, value, bytes); }

/* ---- between processes -------------------------------------------------------------------------------------------------- */

typedef struct {
    char bytes[EM_HANDLE_BYTES]; /* passed by value */
} Handle;

int cudaIpcGetMemHandle(Handle *handle, void *address) { return rt_result(em_share(address, handle)); }
int cudaIpcOpenMemHandle(void **address, Handle handle, unsigned flags) {
    return rt_result(em_open_shared(&handle, address));
}
int cudaIpcCloseMemHandle(void *address) { return rt_result(em_return(address)); }

/* An event of another process has been reached: what it stands for has been launched, and nothing runs. */
int cudaIpcGetEventHandle(Handle *handle, void *event) {
    memset(handle, 0, sizeof *handle);
    return EM_OK;
}
int cudaIpcOpenEventHandle(void **event, Handle handle) {
    *event = em_event_create();
    return EM_OK;
}
