/* libnccl: other ranks are not there, and are taken to hold what this one holds. Small buffers get their values, since
 * gathered sizes steer the host; large ones are left. NCCL's own buffers on the card are not modelled. */
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

typedef struct {
    int ranks, rank, device;
} Communicator;

typedef struct {
    char bytes[128];
} UniqueId;

/* Types by number: int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 and two of 8 bits. */
static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64 };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE };

static const size_t largest = (size_t)4 << 20; /* bytes whose values are made */

static size_t bytes_of(size_t count, int type) { return type >= 0 && type < 12 ? count * widths[type] : count; }

static Communicator *new_communicator(int ranks, int rank) {
    Communicator *made = calloc(1, 256);
    made->ranks = ranks;
    made->rank = rank;
    made->device = em_device();
    em_context(made->device);
    em_rank(rank, ranks);
    return made;
}

int ncclGetVersion(int *version) {
    *version = NCCL_VERSION;
    return 0;
}
int ncclGetUniqueId(UniqueId *id) {
    memset(id, 0, sizeof *id);
    strcpy(id->bytes, "emulated");
    return 0;
}
int ncclCommInitRank(Communicator **made, int ranks, UniqueId id, int rank) {
    *made = new_communicator(ranks, rank);
    return 0;
}
int ncclCommInitRankConfig(Communicator **made, int ranks, UniqueId id, int rank, void *options) {
    *made = new_communicator(ranks, rank);
    return 0;
}
int ncclCommInitRankScalable(Communicator **made, int ranks, int rank, int ids, UniqueId *id, void *options) {
    *made = new_communicator(ranks, rank);
    return 0;
}
int ncclCommInitAll(Communicator **made, int ranks, const int *devices) {
    for (int rank = 0; rank < ranks; rank++) made[rank] = new_communicator(ranks, rank);
    return 0;
}

/* How many ranks share a colour only the other ranks know. One is assumed, so that no copy passes the end of a buffer. */
int ncclCommSplit(Communicator *whole, int colour, int key, Communicator **made, void *options) {
    *made = colour < 0 ? NULL : new_communicator(1, 0);
    return 0;
}
int ncclCommShrink(Communicator *whole, int *excluded, int count, Communicator **made, void *options, int flags) {
    *made = new_communicator(whole->ranks - count, whole->rank);
    return 0;
}

int ncclCommCount(Communicator *communicator, int *ranks) {
    *ranks = communicator->ranks;
    return 0;
}
int ncclCommUserRank(Communicator *communicator, int *rank) {
    *rank = communicator->rank;
    return 0;
}
int ncclCommCuDevice(Communicator *communicator, int *device) {
    *device = communicator->device;
    return 0;
}
int ncclCommGetAsyncError(Communicator *communicator, int *error) {
    *error = 0;
    return 0;
}
const char *ncclGetErrorString(int error) { return "error of the emulated driver"; }
const char *ncclGetLastError(void *communicator) { return ""; }

/* ---- collectives ------------------------------------------------------------------------------------------------------------- */

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes <= largest) em_copy(to, from, bytes);
    else if (to != from) em_values_forget(to, bytes);
}

/* One value, reduced over ranks that all hold it; an average, maximum or minimum is the value itself. */
#define REDUCE(Type)                                                        \
    for (size_t i = 0; i < count; i++) {                                    \
        Type value = ((Type *)to)[i], result = value;                       \
        for (int rank = 1; rank < ranks; rank++)                            \
            result = operation == SUM ? result + value : result * value;    \
        ((Type *)to)[i] = result;                                           \
    }                                                                       \
    break

static void reduce(void *to, size_t count, int type, int operation, int ranks) {
    if (operation != SUM && operation != PRODUCT) return;
    if (bytes_of(count, type) > largest / 64 || !em_find(to, NULL, NULL, NULL)) return;
    switch (type) {
        case INT8: REDUCE(int8_t);
        case UINT8: REDUCE(uint8_t);
        case INT32: REDUCE(int32_t);
        case UINT32: REDUCE(uint32_t);
        case INT64: REDUCE(int64_t);
        case UINT64: REDUCE(uint64_t);
        case FLOAT32: REDUCE(float);
        case FLOAT64: REDUCE(double);
        default: break; /* what the host reads is not of half precision */
    }
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, Communicator *c, void *stream) {
    copy(to, from, bytes_of(count, type));
    reduce(to, count, type, operation, c->ranks);
    return 0;
}
int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root, Communicator *c,
               void *stream) {
    return c->rank == root ? ncclAllReduce(from, to, count, type, operation, c, stream) : 0;
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, Communicator *c, void *stream) {
    size_t bytes = bytes_of(count, type);
    copy(to, (const char *)from + (size_t)c->rank * bytes, bytes);
    reduce(to, count, type, operation, c->ranks);
    return 0;
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *c, void *stream) {
    copy(to, from, bytes_of(count, type));
    return 0;
}
int ncclBcast(void *buffer, size_t count, int type, int root, Communicator *c, void *stream) { return 0; }

int ncclAllGather(const void *from, void *to, size_t count, int type, Communicator *c, void *stream) {
    size_t bytes = bytes_of(count, type), total = bytes * (size_t)c->ranks;
    if (total > largest) {
        em_values_forget(to, total);
        return 0;
    }
    const char *own = (const char *)to + (size_t)c->rank * bytes; /* `from` may be a part of `to` */
    copy((void *)own, from, bytes);
    for (int rank = 0; rank < c->ranks; rank++) copy((char *)to + (size_t)rank * bytes, own, bytes);
    return 0;
}
int ncclAlltoAll(const void *from, void *to, size_t count, int type, Communicator *c, void *stream) {
    size_t bytes = bytes_of(count, type);
    for (int rank = 0; rank < c->ranks; rank++)
        copy((char *)to + (size_t)rank * bytes, (const char *)from + (size_t)c->rank * bytes, bytes);
    return 0;
}

/* ---- point to point: what is received is what this rank sends in the same group ----------------------------------------- */

#define MOST_SENT 256
static __thread struct {
    const void *from;
    size_t bytes;
} sent[MOST_SENT];
static __thread int sent_count;

int ncclSend(const void *from, size_t count, int type, int peer, Communicator *c, void *stream) {
    if (sent_count < MOST_SENT) {
        sent[sent_count].from = from;
        sent[sent_count++].bytes = bytes_of(count, type);
    }
    return 0;
}
int ncclRecv(void *to, size_t count, int type, int peer, Communicator *c, void *stream) {
    size_t bytes = bytes_of(count, type);
    if (sent_count) copy(to, sent[0].from, bytes < sent[0].bytes ? bytes : sent[0].bytes);
    return 0;
}
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) {
    sent_count = 0;
    return 0;
}
int ncclGroupSimulateEnd(void *result) { return 0; }

/* ---- memory and operations --------------------------------------------------------------------------------------------------- */

int ncclMemAlloc(void **address, size_t bytes) { return em_malloc(em_device(), bytes, address); }
int ncclMemFree(void *address) { return em_free(address); }
int ncclCommRegister(Communicator *communicator, void *buffer, size_t bytes, void **handle) {
    *handle = buffer;
    return 0;
}
int ncclCommWindowRegister(Communicator *communicator, void *buffer, size_t bytes, void **window, int flags) {
    *window = buffer;
    return 0;
}
int ncclRedOpCreatePreMulSum(int *operation, void *factor, int type, int place, Communicator *communicator) {
    *operation = 5;
    return 0;
}
