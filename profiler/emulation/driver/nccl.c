/* libnccl. In a job whose ranks are processes they exchange small messages (exchange.c). Elsewhere the others are taken to
 * hold what this rank holds. NCCL's own buffers on the card are not modelled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

typedef struct {
    char bytes[128];
} UniqueId;

static const size_t largest = (size_t)4 << 20; /* bytes whose values are made */

static int ranks_are_processes(void) { return em_option("EMULATED_ALL_RANKS") != NULL; }

/* Ranks that have the same name meet. */
static Communicator *new_communicator(int ranks, int rank, const char *name) {
    Communicator *made = calloc(1, sizeof *made > 256 ? sizeof *made : 256);
    made->ranks = ranks;
    made->rank = rank;
    made->device = em_device();
    em_context(made->device);
    snprintf(made->name, sizeof made->name, "%s", name);
    if (ranks > 1 && *name && ranks_are_processes()) gr_join(made);
    return made;
}

/* The name of a group is a hash of its number, and of how it was made from another one. */
static void name_of(char *name, size_t size, const void *bytes, size_t length) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < length; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    snprintf(name, size, "nccl-%016llx", (unsigned long long)hash);
}

static int join(Communicator **made, int ranks, const UniqueId *id, int rank) {
    char name[64];
    name_of(name, sizeof name, id->bytes, sizeof id->bytes);
    *made = new_communicator(ranks, rank, name);
    return 0;
}

int ncclGetVersion(int *version) {
    *version = NCCL_VERSION;
    return 0;
}
int ncclGetUniqueId(UniqueId *id) {
    static int count;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "emulated %ld %llu %d", (long)getpid(), (unsigned long long)em_born(getpid()),
             __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST));
    return 0;
}
int ncclCommInitRank(Communicator **made, int ranks, UniqueId id, int rank) { return join(made, ranks, &id, rank); }
int ncclCommInitRankConfig(Communicator **made, int ranks, UniqueId id, int rank, void *options) {
    return join(made, ranks, &id, rank);
}
int ncclCommInitRankScalable(Communicator **made, int ranks, int rank, int ids, UniqueId *id, void *options) {
    return join(made, ranks, id, rank);
}

/* All ranks are this process, with a card each. */
int ncclCommInitAll(Communicator **made, int ranks, const int *devices) {
    char name[64];
    UniqueId id;
    int before = em_device();
    ncclGetUniqueId(&id);
    name_of(name, sizeof name, id.bytes, sizeof id.bytes);
    for (int rank = 0; rank < ranks; rank++) {
        em_set_device(devices ? devices[rank] : rank);
        made[rank] = new_communicator(ranks, rank, name);
    }
    em_set_device(before);
    return 0;
}

/* Where the others are not there, one rank of this colour is assumed, so that no copy passes the end of a buffer. */
int ncclCommSplit(Communicator *whole, int colour, int key, Communicator **made, void *options) {
    int rank = 0, ranks = 1, turn = 0;
    char words[128], name[64];
    if (whole->is_exchanged) turn = ex_split(whole, colour, key, &rank, &ranks);
    snprintf(words, sizeof words, "%s split %d %d", whole->name, turn, colour);
    name_of(name, sizeof name, words, strlen(words));
    *made = colour < 0 ? NULL : new_communicator(ranks, rank, name);
    return 0;
}
int ncclCommShrink(Communicator *whole, int *excluded, int count, Communicator **made, void *options, int flags) {
    int rank = whole->rank;
    char words[128], name[64];
    for (int i = 0; i < count; i++) rank -= excluded[i] < whole->rank;
    snprintf(words, sizeof words, "%s shrunk %d", whole->name, whole->shrunk++);
    name_of(name, sizeof name, words, strlen(words));
    *made = new_communicator(whole->ranks - count, rank, name);
    return 0;
}

/* Torch still asks for the error of a group that it has destroyed: the group stays, and its files are closed. */
int ncclCommFinalize(Communicator *communicator) { return 0; }
int ncclCommDestroy(Communicator *communicator) {
    ex_leave(communicator, 1);
    return 0;
}
int ncclCommAbort(Communicator *communicator) {
    ex_leave(communicator, 0);
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

/* ---- calls ------------------------------------------------------------------------------------------------------------------ */

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes <= largest) em_copy(to, from, bytes);
    else if (to != from) em_values_forget(to, bytes);
}

/* One value, reduced over ranks that all hold it; an average, maximum or minimum is the value itself. */
static void reduce(void *to, size_t count, int type, int operation, int ranks) {
    size_t bytes = nc_bytes(count, type);
    if (operation != SUM && operation != PRODUCT) return;
    if (bytes > largest / 64 || !em_find(to, NULL, NULL, NULL)) return;
    if (type == FLOAT16 || type == BFLOAT16) return; /* what the host reads is not of half precision */
    void *value = malloc(bytes + 1);
    memcpy(value, to, bytes);
    for (int rank = 1; rank < ranks; rank++) nc_combine(to, value, count, type, operation);
    free(value);
}

#define MOST_FACTORS 256
static double factors[MOST_FACTORS];

/* Let ranks that are processes exchange; 0 if the others are taken to hold what this one holds. */
static int is_exchanged(Communicator *c, Call call, void *stream) {
    if (!c->is_exchanged || !c->ports) return 0;
    if (call.operation >= SCALED) {
        call.factor = factors[(call.operation - SCALED) % MOST_FACTORS];
        call.operation = SCALED;
    }
    if (call.call == SEND) ex_send(c, &call);
    else if (call.call == RECEIVE) ex_receive(c, &call, stream);
    else ex_call(c, &call, stream);
    return 1;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, Communicator *c, void *stream) {
    if (is_exchanged(c, (Call){ALL_REDUCE, from, to, count, type, operation}, stream)) return 0;
    copy(to, from, nc_bytes(count, type));
    reduce(to, count, type, operation, c->ranks);
    return 0;
}
int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root, Communicator *c,
               void *stream) {
    if (is_exchanged(c, (Call){REDUCE, from, to, count, type, operation, root}, stream)) return 0;
    return c->rank == root ? ncclAllReduce(from, to, count, type, operation, c, stream) : 0;
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, Communicator *c, void *stream) {
    size_t bytes = nc_bytes(count, type);
    if (is_exchanged(c, (Call){REDUCE_SCATTER, from, to, count, type, operation}, stream)) return 0;
    copy(to, (const char *)from + (size_t)c->rank * bytes, bytes);
    reduce(to, count, type, operation, c->ranks);
    return 0;
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *c, void *stream) {
    if (is_exchanged(c, (Call){BROADCAST, from, to, count, type, 0, root}, stream)) return 0;
    copy(to, from, nc_bytes(count, type));
    return 0;
}
int ncclBcast(void *buffer, size_t count, int type, int root, Communicator *c, void *stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, c, stream);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, Communicator *c, void *stream) {
    size_t bytes = nc_bytes(count, type), total = bytes * (size_t)c->ranks;
    if (is_exchanged(c, (Call){ALL_GATHER, from, to, count, type}, stream)) return 0;
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
    size_t bytes = nc_bytes(count, type);
    if (is_exchanged(c, (Call){ALL_TO_ALL, from, to, count, type}, stream)) return 0;
    for (int rank = 0; rank < c->ranks; rank++)
        copy((char *)to + (size_t)rank * bytes, (const char *)from + (size_t)c->rank * bytes, bytes);
    return 0;
}

/* ---- point to point: what is received of ranks that are not there is what this rank sends in the same group ------------ */

#define MOST_SENT 256
static __thread struct {
    const void *from;
    size_t bytes;
} sent[MOST_SENT];
static __thread int sent_count;

int ncclSend(const void *from, size_t count, int type, int peer, Communicator *c, void *stream) {
    if (is_exchanged(c, (Call){SEND, from, NULL, count, type, 0, peer}, stream)) return 0;
    if (sent_count < MOST_SENT) {
        sent[sent_count].from = from;
        sent[sent_count++].bytes = nc_bytes(count, type);
    }
    return 0;
}
int ncclRecv(void *to, size_t count, int type, int peer, Communicator *c, void *stream) {
    size_t bytes = nc_bytes(count, type);
    if (is_exchanged(c, (Call){RECEIVE, NULL, to, count, type, 0, peer}, stream)) return 0;
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
    static unsigned made;
    unsigned slot = __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST) % MOST_FACTORS;
    factors[slot] = nc_value(factor, type);
    *operation = SCALED + (int)slot;
    return 0;
}
