/* Memory of a card that one process allocates and others open: its bytes are those of the first, and are counted once. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulated.h"

static const char mark[8] = "em share";

/* What a handle of 64 bytes says. */
typedef struct {
    char mark[8];
    int64_t pid;
    uint64_t born, address, bytes;
    int64_t physical;
} Shared;

int em_share(const void *address, void *handle) {
    Shared shared = {.pid = getpid(), .born = em_born(getpid())};
    void *start;
    size_t bytes;
    int device;
    if (!em_find(address, &device, &start, &bytes) || em_is_borrowed(address)) return EM_INVALID_VALUE;
    memcpy(shared.mark, mark, sizeof mark);
    shared.address = (uint64_t)start;
    shared.bytes = bytes;
    shared.physical = em_physical(device);
    memset(handle, 0, EM_HANDLE_BYTES);
    memcpy(handle, &shared, sizeof shared);
    return EM_OK;
}

int em_visible(int physical) {
    for (int device = 0; device < em_count(); device++)
        if (em_physical(device) == physical) return device;
    return -1;
}

/* The other process must live, and its card must be one of this process. What it wrote there is not known here. */
int em_open_shared(const void *handle, void **address) {
    Shared shared;
    memcpy(&shared, handle, sizeof shared);
    *address = NULL;
    if (memcmp(shared.mark, mark, sizeof mark) || em_born((long)shared.pid) != shared.born) return EM_INVALID_HANDLE;
    if (shared.pid == getpid()) return EM_INVALID_VALUE;
    int device = em_visible((int)shared.physical);
    if (device < 0) return EM_INVALID_DEVICE;
    em_context(device);
    return em_borrow(device, shared.bytes, address);
}
