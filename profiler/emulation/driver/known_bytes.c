/* Which bytes of the cards hold what a real card would hold: they were copied from the host, set, or computed on the CPU
 * from such bytes (values/operators.cpp). Everything else is unknown; who made it is kept, to be named if the host reads it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

typedef struct {
    uintptr_t start, end;
    const char *producer; /* NULL: the bytes are right */
} Span;

static Span *spans; /* sorted by address; they do not overlap */
static int count, capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void after_fork(void) { pthread_mutex_init(&lock, NULL); }
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

/* Write one span over what is there, or clear the bytes if `makes` is 0. The caller holds the lock. */
static void write_span(uintptr_t start, uintptr_t end, const char *producer, int makes) {
    Span with[3];
    int added = 0, first = before(start), last = first;
    while (last < count && spans[last].start < end) last++;
    if (first < last && spans[first].start < start) with[added++] = (Span){spans[first].start, start, spans[first].producer};
    if (makes) with[added++] = (Span){start, end, producer};
    if (first < last && spans[last - 1].end > end) with[added++] = (Span){end, spans[last - 1].end, spans[last - 1].producer};
    splice(first, last - first, with, added);
}

/* Join neighbours that say the same, so that a buffer that is filled in pieces is one span. */
static void join(uintptr_t start, uintptr_t end) {
    int index = before(start);
    for (int i = index > 0 ? index - 1 : 0; i + 1 < count && spans[i].start <= end;) {
        if (spans[i].end != spans[i + 1].start || spans[i].producer != spans[i + 1].producer) {
            i++;
            continue;
        }
        Span joined = {spans[i].start, spans[i + 1].end, spans[i].producer};
        splice(i, 2, &joined, 1);
    }
}

/* The producer's name outlives its spans: callers pass literals, names of operators, and buffers that are never freed. */
static void locked_write(const void *address, size_t bytes, const char *producer, int makes) {
    uintptr_t from = (uintptr_t)address, to = from + bytes;
    if (!bytes) return;
    pthread_mutex_lock(&lock);
    write_span(from, to, producer, makes);
    if (makes) join(from, to);
    pthread_mutex_unlock(&lock);
}

void em_values_right(const void *address, size_t bytes) { locked_write(address, bytes, NULL, 1); }
void em_values_unknown(const void *address, size_t bytes, const char *producer) {
    locked_write(address, bytes, producer, 1);
}
void em_values_forget(const void *address, size_t bytes) { locked_write(address, bytes, NULL, 0); }

const char *em_values_producer(const void *address, size_t bytes) {
    uintptr_t at = (uintptr_t)address, end = at + bytes;
    const char *producer = NULL;
    pthread_mutex_lock(&lock);
    for (int i = before(at); at < end && !producer; i++) {
        if (i == count || spans[i].start > at) {
            producer = "memory that nothing was written to";
            break;
        }
        producer = spans[i].producer;
        at = spans[i].end;
    }
    pthread_mutex_unlock(&lock);
    return producer;
}
