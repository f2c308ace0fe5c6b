/* libcuda: virtual memory. Address ranges are reserved, physical pieces count against their card, and are mapped into them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulated.h"

typedef uint64_t Address;

/* A physical piece. It returns to its card when no handle is left and it is mapped nowhere. Its record stays, so that a
   handle that is released twice, as vLLM does at its end with what sleeps, is refused as a card's driver does. */
typedef struct {
    int device;
    size_t bytes;
    int maps, handles;
    int borrowed; /* of another process, which counts it */
} Piece;

typedef struct {
    Address at;
    size_t bytes;
    Piece *piece;
} Map;

static Map *maps;
static int map_count, map_capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option) {
    *bytes = EM_PAGE;
    return EM_OK;
}

static void *reserve(void *at, size_t bytes) {
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

int cuMemAddressReserve(Address *address, size_t bytes, size_t alignment, Address wanted, unsigned long long flags) {
    char *start = reserve((void *)wanted, bytes);
    if (start == MAP_FAILED) return EM_OUT_OF_MEMORY;
    if ((Address)start & (EM_PAGE - 1)) { /* with one more page there is an aligned start within */
        munmap(start, bytes);
        start = reserve(NULL, bytes + EM_PAGE);
        if (start == MAP_FAILED) return EM_OUT_OF_MEMORY;
        char *aligned = (char *)(((Address)start + EM_PAGE - 1) & ~(Address)(EM_PAGE - 1));
        if (aligned > start) munmap(start, (size_t)(aligned - start));
        if (aligned < start + EM_PAGE) munmap(aligned + bytes, (size_t)(start + EM_PAGE - aligned));
        start = aligned;
    }
    em_range(start, bytes, em_device());
    *address = (Address)start;
    return EM_OK;
}

int cuMemAddressFree(Address address, size_t bytes) {
    em_unrange((void *)address);
    munmap((void *)address, bytes);
    return EM_OK;
}

/* The properties begin with the kind of allocation, the kinds of handles, the kind of place, and its number. */
int cuMemCreate(Address *handle, size_t bytes, const void *properties, unsigned long long flags) {
    int device = ((const int *)properties)[3], error = em_account(device, (int64_t)bytes);
    if (error) return error;
    Piece *piece = calloc(1, sizeof *piece);
    piece->device = device;
    piece->bytes = bytes;
    piece->handles = 1;
    *handle = (Address)piece;
    return EM_OK;
}

/* The caller holds the lock. */
static void return_if_unused(Piece *piece) {
    if (piece->handles || piece->maps) return;
    if (!piece->borrowed) em_account(piece->device, -(int64_t)piece->bytes);
}

int cuMemRelease(Address handle) {
    Piece *piece = (Piece *)handle;
    pthread_mutex_lock(&lock);
    int error = piece->handles ? EM_OK : EM_INVALID_VALUE;
    if (!error) {
        piece->handles--;
        return_if_unused(piece);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int cuMemMap(Address address, size_t bytes, size_t offset, Address handle, unsigned long long flags) {
    Piece *piece = (Piece *)handle;
    mprotect((void *)address, bytes, PROT_READ | PROT_WRITE);
    madvise((void *)address, bytes, MADV_NOHUGEPAGE);
    pthread_mutex_lock(&lock);
    if (map_count == map_capacity) {
        map_capacity = map_capacity ? 2 * map_capacity : 1024;
        maps = realloc(maps, (size_t)map_capacity * sizeof *maps);
        if (!maps) abort();
    }
    piece->maps++;
    maps[map_count++] = (Map){address, bytes, piece};
    pthread_mutex_unlock(&lock);
    if (piece->borrowed) em_values_unknown((void *)address, bytes, "memory of another process");
    return EM_OK;
}

int cuMemUnmap(Address address, size_t bytes) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < map_count;) {
        Map map = maps[i];
        if (map.at < address || map.at >= address + bytes) {
            i++;
            continue;
        }
        em_values_forget((void *)map.at, map.bytes);
        madvise((void *)map.at, map.bytes, MADV_DONTNEED);
        mprotect((void *)map.at, map.bytes, PROT_NONE);
        maps[i] = maps[--map_count];
        map.piece->maps--;
        return_if_unused(map.piece);
    }
    pthread_mutex_unlock(&lock);
    return EM_OK;
}

int cuMemRetainAllocationHandle(Address *handle, void *address) {
    int error = EM_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < map_count && error; i++) {
        if ((Address)address < maps[i].at || (Address)address >= maps[i].at + maps[i].bytes) continue;
        maps[i].piece->handles++;
        *handle = (Address)maps[i].piece;
        error = EM_OK;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int cuMemSetAccess(Address address, size_t bytes, const void *descriptions, size_t count) { return EM_OK; }

/* ---- between processes: the descriptor of a file that says which piece it is --------------------------------------------- */

enum { DESCRIPTOR = 1 }; /* the kind of handle; others, such as those of a fabric, need hardware */

typedef struct {
    char mark[8];
    int64_t physical;
    uint64_t bytes;
} Shared;

static const char mark[8] = "em piece";

int cuMemExportToShareableHandle(void *shareable, Address handle, int kind, unsigned long long flags) {
    const Piece *piece = (const Piece *)handle;
    Shared shared = {.physical = em_physical(piece->device), .bytes = piece->bytes};
    if (kind != DESCRIPTOR) return EM_NOT_SUPPORTED;
    if (!piece->handles) return EM_INVALID_VALUE;
    memcpy(shared.mark, mark, sizeof mark);
    int file = memfd_create("emulated piece", MFD_CLOEXEC);
    if (file < 0 || pwrite(file, &shared, sizeof shared, 0) != sizeof shared) return EM_OUT_OF_MEMORY;
    memcpy(shareable, &file, sizeof file);
    return EM_OK;
}

int cuMemImportFromShareableHandle(Address *handle, void *shareable, int kind) {
    Shared shared;
    if (kind != DESCRIPTOR) return EM_NOT_SUPPORTED;
    if (pread((int)(long)shareable, &shared, sizeof shared, 0) != sizeof shared || memcmp(shared.mark, mark, sizeof mark))
        return EM_INVALID_VALUE;
    int device = em_visible((int)shared.physical);
    if (device < 0) return EM_INVALID_DEVICE;
    Piece *piece = calloc(1, sizeof *piece);
    piece->device = device;
    piece->bytes = shared.bytes;
    piece->handles = piece->borrowed = 1;
    *handle = (Address)piece;
    return EM_OK;
}
