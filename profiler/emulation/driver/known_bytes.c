/* Which bytes of the cards hold what a real card would hold: they were copied from the host, set, or computed on the CPU
 * from such bytes (values/operators.cpp). Everything else is unknown; who made it is kept, to be named if the host reads it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

typedef struct {
    uintptr_t start, end;
    const char *producer; /* NULL: the bytes are right */
    EmAwaited *awaited;   /* they come from other ranks, and are not there yet */
} Span;

static Span *spans; /* sorted by address; they do not overlap */
static int count, capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A forked process has no memory of a card, and awaits nothing. */
static void after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    count = 0;
}
__attribute__((constructor)) static void start(void) { pthread_atfork(NULL, NULL, after_fork); }

/* The number of spans that end at or before `address`. */
static int before(uintptr_t address) {
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (spans[middle].end <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Replace `old` spans from `index` on by `added` ones. */
static void splice(int index, int old, const Span *with, int added) {
    int grown = count + added - old;
    if (grown > capacity) {
        capacity = 2 * grown + 1024;
        spans = realloc(spans, (size_t)capacity * sizeof *spans);
        if (!spans) abort();
    }
    memmove(&spans[index + added], &spans[index + old], (size_t)(count - index - old) * sizeof *spans);
    memcpy(&spans[index], with, (size_t)added * sizeof *spans);
    count = grown;
}

/* Write one span over what is there, or clear the bytes if it is empty. The caller holds the lock. */
static void write_span(uintptr_t start, uintptr_t end, const Span *span) {
    Span with[3];
    int added = 0, first = before(start), last = first;
    while (last < count && spans[last].start < end) last++;
    if (first < last && spans[first].start < start) {
        with[added] = spans[first];
        with[added++].end = start;
    }
    if (span) with[added++] = *span;
    if (first < last && spans[last - 1].end > end) {
        with[added] = spans[last - 1];
        with[added++].start = end;
    }
    splice(first, last - first, with, added);
}

/* Join neighbours that say the same, so that a buffer that is filled in pieces is one span. */
static void join(uintptr_t start, uintptr_t end) {
    int index = before(start);
    for (int i = index > 0 ? index - 1 : 0; i + 1 < count && spans[i].start <= end;) {
        if (spans[i].end != spans[i + 1].start || spans[i].producer != spans[i + 1].producer ||
            spans[i].awaited != spans[i + 1].awaited) {
            i++;
            continue;
        }
        Span joined = {spans[i].start, spans[i + 1].end, spans[i].producer, spans[i].awaited};
        splice(i, 2, &joined, 1);
    }
}

/* The producer's name outlives its spans: callers pass literals, names of operators, and buffers that are never freed. */
static void locked_write(const void *address, size_t bytes, const char *producer, EmAwaited *awaited, int makes) {
    uintptr_t from = (uintptr_t)address, to = from + bytes;
    Span span = {from, to, producer, awaited};
    if (!bytes) return;
    pthread_mutex_lock(&lock);
    write_span(from, to, makes ? &span : NULL);
    if (makes) join(from, to);
    pthread_mutex_unlock(&lock);
}

void em_values_right(const void *address, size_t bytes) { locked_write(address, bytes, NULL, NULL, 1); }
void em_values_unknown(const void *address, size_t bytes, const char *producer) {
    locked_write(address, bytes, producer, NULL, 1);
}
void em_values_forget(const void *address, size_t bytes) { locked_write(address, bytes, NULL, NULL, 0); }

/* ---- what other ranks send ------------------------------------------------------------------------------------------------------ */

void em_values_await(const void *address, size_t bytes, EmAwaited *awaited) {
    locked_write(address, bytes, NULL, awaited, 1);
}

void em_hold(EmAwaited *awaited) { __atomic_add_fetch(&awaited->holders, 1, __ATOMIC_SEQ_CST); }
void em_let_go(EmAwaited *awaited) {
    if (!__atomic_sub_fetch(&awaited->holders, 1, __ATOMIC_SEQ_CST)) awaited->end(awaited);
}

int em_values_is_awaited(const EmAwaited *awaited) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count && !found; i++) found = spans[i].awaited == awaited;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Whatever was written over the place in the meantime stays. */
void em_values_arrived(EmAwaited *awaited, char *address, const char *bytes, const char *producer) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        if (spans[i].awaited != awaited) continue;
        char *start = (char *)spans[i].start;
        size_t length = spans[i].end - spans[i].start;
        if (bytes) memcpy(start, bytes + (start - address), length);
        else memset(start, 0, length);
        spans[i].awaited = NULL;
        spans[i].producer = producer;
    }
    pthread_mutex_unlock(&lock);
}

/* The first of these bytes that are awaited, held; NULL: none are, and `producer` says who made what is not right. */
static EmAwaited *look(uintptr_t at, uintptr_t end, const char **producer) {
    EmAwaited *awaited = NULL;
    *producer = NULL;
    pthread_mutex_lock(&lock);
    for (int i = before(at); at < end && !awaited; i++) {
        if (i == count || spans[i].start > at) {
            if (!*producer) *producer = "memory that nothing was written to";
            if (i == count) break;
        }
        if (spans[i].start >= end) break;
        awaited = spans[i].awaited;
        if (!*producer) *producer = spans[i].producer;
        at = spans[i].end;
    }
    if (awaited) em_hold(awaited);
    pthread_mutex_unlock(&lock);
    return awaited;
}

const char *em_values_producer(const void *address, size_t bytes) {
    uintptr_t start = (uintptr_t)address;
    const char *producer;
    EmAwaited *awaited;
    while ((awaited = look(start, start + bytes, &producer))) {
        awaited->arrive(awaited);
        em_let_go(awaited);
    }
    return producer;
}

/* Whether any of these bytes is right. */
int em_values_any_right(const void *address, size_t bytes) {
    uintptr_t at = (uintptr_t)address, end = at + bytes;
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = before(at); i < count && spans[i].start < end && !found; i++)
        found = !spans[i].producer && !spans[i].awaited;
    pthread_mutex_unlock(&lock);
    return found;
}
