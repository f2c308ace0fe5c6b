/* Memory of cards that compute nothing: address space of the host, and a count of the bytes that are taken.
 *
 * Pages are the host's own and cost nothing until something is written to them, which only small copies do. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emulated.h"

typedef struct {
    char *start;
    size_t bytes;
    int device;
    int borrowed; /* of another process, which counts it */
} Range;

typedef struct {
    Range *ranges; /* sorted by address; they do not overlap */
    int count, capacity;
} Ranges;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Ranges on_cards, pinned;
static uint64_t taken[EM_MAX_CARDS];
static int has_context[EM_MAX_CARDS];
static __thread int current;
static size_t largest_copy = (size_t)4 << 20;

/* A forked process has no context: neither has a real one that uses CUDA after a fork. */
static void forget_everything(void) {
    pthread_mutex_init(&lock, NULL);
    on_cards.count = pinned.count = 0;
    memset(taken, 0, sizeof taken);
    memset(has_context, 0, sizeof has_context);
}

__attribute__((constructor)) static void start(void) {
    const char *option = em_option("EMULATED_LARGEST_COPY");
    if (option) largest_copy = strtoull(option, NULL, 10);
    pthread_atfork(NULL, NULL, forget_everything);
}

/* ---- ranges; the caller holds the lock ---------------------------------------------------------------------------------- */

/* The number of ranges that start at or before `address`. */
static int up_to(const Ranges *all, const void *address) {
    int low = 0, high = all->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (all->ranges[middle].start <= (const char *)address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static const Range *containing(const Ranges *all, const void *address) {
    int index = up_to(all, address) - 1;
    if (index < 0) return NULL;
    const Range *range = &all->ranges[index];
    return (const char *)address < range->start + range->bytes ? range : NULL;
}

static void add(Ranges *all, Range range) {
    if (all->count == all->capacity) {
        all->capacity = all->capacity ? 2 * all->capacity : 1024;
        all->ranges = realloc(all->ranges, (size_t)all->capacity * sizeof *all->ranges);
        if (!all->ranges) abort();
    }
    int index = up_to(all, range.start);
    memmove(&all->ranges[index + 1], &all->ranges[index], (size_t)(all->count - index) * sizeof range);
    all->ranges[index] = range;
    all->count++;
}

/* Remove the range that starts at `address`; 1 if there is one. */
static int removed(Ranges *all, const void *address, Range *range) {
    int index = up_to(all, address) - 1;
    if (index < 0 || all->ranges[index].start != address) return 0;
    *range = all->ranges[index];
    all->count--;
    memmove(&all->ranges[index], &all->ranges[index + 1], (size_t)(all->count - index) * sizeof *range);
    return 1;
}

static void locked_add(Ranges *all, void *address, size_t bytes, int device) {
    pthread_mutex_lock(&lock);
    add(all, (Range){address, bytes, device, 0});
    pthread_mutex_unlock(&lock);
}

static int locked_remove(Ranges *all, const void *address, Range *range) {
    pthread_mutex_lock(&lock);
    int found = removed(all, address, range);
    pthread_mutex_unlock(&lock);
    return found;
}

void em_range(void *address, size_t bytes, int device) { locked_add(&on_cards, address, bytes, device); }

void em_unrange(void *address) {
    Range range;
    locked_remove(&on_cards, address, &range);
}

int em_find(const void *address, int *device, void **start, size_t *bytes) {
    pthread_mutex_lock(&lock);
    const Range *range = containing(&on_cards, address);
    if (range) {
        if (device) *device = range->device;
        if (start) *start = range->start;
        if (bytes) *bytes = range->bytes;
    }
    pthread_mutex_unlock(&lock);
    return range != NULL;
}

void em_pin(void *address, size_t bytes) { locked_add(&pinned, address, bytes, 0); }

void em_unpin(void *address) {
    Range range;
    locked_remove(&pinned, address, &range);
}

int em_is_pinned(const void *address) {
    pthread_mutex_lock(&lock);
    int found = containing(&pinned, address) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- cards ---------------------------------------------------------------------------------------------------------------- */

int em_device(void) { return current; }
void em_set_device(int device) { current = device; }

/* The caller holds the lock. */
static void publish(void) {
    uint64_t held[EM_MAX_CARDS] = {0};
    for (int device = 0; device < em_count(); device++)
        held[em_physical(device)] = taken[device] + (has_context[device] ? em_card()->context_bytes : 0);
    em_publish(held);
}

int em_has_context(int device) { return device >= 0 && device < em_count() && has_context[device]; }

void em_context(int device) {
    if (device < 0 || device >= em_count() || has_context[device]) return;
    em_join();
    pthread_mutex_lock(&lock);
    em_lock_cards();
    has_context[device] = 1;
    publish();
    em_unlock_cards();
    pthread_mutex_unlock(&lock);
}

/* Bytes of a card that are in use: by this process with its context, and by others where they share the card. */
static uint64_t in_use(int device) {
    return taken[device] + em_card()->context_bytes + em_held_by_others(em_physical(device));
}

int em_account(int device, int64_t bytes) {
    if (device < 0 || device >= em_count()) return EM_INVALID_DEVICE;
    em_context(device);
    pthread_mutex_lock(&lock);
    em_lock_cards();
    int fits = bytes <= 0 || in_use(device) + (uint64_t)bytes <= em_card()->memory_bytes;
    if (fits) {
        taken[device] += (uint64_t)bytes;
        publish();
    } else {
        em_refused(em_physical(device), (uint64_t)bytes);
    }
    em_unlock_cards();
    pthread_mutex_unlock(&lock);
    return fits ? EM_OK : EM_OUT_OF_MEMORY;
}

void em_info(int device, size_t *free_bytes, size_t *total_bytes) {
    em_context(device);
    uint64_t used = in_use(device);
    *total_bytes = em_card()->memory_bytes;
    *free_bytes = used > *total_bytes ? 0 : *total_bytes - used;
}

/* Addresses of the host, whose pages cost nothing yet; NULL if there are none. */
static void *new_addresses(size_t bytes) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NULL;
    madvise(start, bytes, MADV_NOHUGEPAGE); /* one written byte shall cost 4 KiB of the host, not 2 MiB */
    return start;
}

int em_malloc(int device, size_t bytes, void **address) {
    size_t rounded = (bytes + EM_PAGE - 1) & ~(EM_PAGE - 1);
    *address = NULL;
    int error = em_account(device, (int64_t)rounded);
    if (error) return error;
    void *start = new_addresses(rounded);
    if (!start) {
        em_account(device, -(int64_t)rounded);
        return EM_OUT_OF_MEMORY;
    }
    em_range(start, rounded, device);
    *address = start;
    return EM_OK;
}

/* Memory of another process: addresses here, and no bytes of the card. */
int em_borrow(int device, size_t bytes, void **address) {
    void *start = new_addresses(bytes);
    if (!start) return EM_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add(&on_cards, (Range){start, bytes, device, 1});
    pthread_mutex_unlock(&lock);
    em_values_unknown(start, bytes, "memory of another process");
    *address = start;
    return EM_OK;
}

int em_is_borrowed(const void *address) {
    pthread_mutex_lock(&lock);
    const Range *range = containing(&on_cards, address);
    int found = range && range->borrowed;
    pthread_mutex_unlock(&lock);
    return found;
}

int em_return(void *address) {
    Range range;
    if (!em_is_borrowed(address) || !locked_remove(&on_cards, address, &range)) return EM_INVALID_VALUE;
    em_values_forget(range.start, range.bytes);
    munmap(range.start, range.bytes);
    return EM_OK;
}

int em_free(void *address) {
    Range range;
    if (!address) return EM_OK;
    if (em_is_borrowed(address)) return EM_INVALID_VALUE;
    if (!locked_remove(&on_cards, address, &range)) return EM_INVALID_VALUE;
    em_values_forget(range.start, range.bytes);
    munmap(range.start, range.bytes);
    em_account(range.device, -(int64_t)range.bytes);
    return EM_OK;
}

/* ---- copies ---------------------------------------------------------------------------------------------------------------- */

static __thread uint64_t injected;
static __thread int injects;

void em_inject(uint64_t value) {
    injected = value;
    injects = 1;
}

/* What the host reads of a card is noted if a real card would have computed it. */
static __thread const char *read_type;
static __thread int read_steers = 1;
static __thread int copies_all;

void em_copy_all(int all) { copies_all = all; }

void em_reading(const char *type, int steers) {
    read_type = type;
    read_steers = type ? steers : 1;
}

static void note_read(const char *producer) {
    char text[160];
    snprintf(text, sizeof text, "%s of %s", read_type ? read_type : "bytes", producer);
    em_mark(read_steers ? "value" : "float", text);
}

static void copy_values(void *to, const char *producer, size_t bytes) {
    if (producer) em_values_unknown(to, bytes, producer);
    else em_values_right(to, bytes);
}

/* A large copy to a card is left out: nothing reads it there, and it would take memory of the host. So is one from a card
 * whose bytes are unknown, such as weights that are offloaded: they are zeros. Small ones are made, since values steer what the
 * host does next. */
void em_copy(void *to, const void *from, size_t bytes) {
    if (!bytes || to == from) return;
    int to_card = em_find(to, NULL, NULL, NULL), from_card = em_find(from, NULL, NULL, NULL);
    const char *unknown;
    if (injects && (bytes == 4 || bytes == 8) && from_card && !to_card) {
        injects = 0;
        memcpy(to, &injected, bytes);
        return;
    }
    if (from_card && !to_card && (unknown = em_values_producer(from, bytes))) {
        note_read(unknown);
        if (bytes > largest_copy && !copies_all && !em_values_any_right(from, bytes)) {
            em_zero(to, bytes);
            return;
        }
    }
    if (to_card && bytes > largest_copy && !copies_all) {
        em_values_forget(to, bytes);
        return;
    }
    const char *producer = to_card && from_card ? em_values_producer(from, bytes) : NULL; /* what is awaited arrives first */
    memmove(to, from, bytes);
    if (to_card) copy_values(to, producer, bytes);
}

void em_set(void *to, int value, size_t bytes) {
    if (value && bytes > largest_copy) {
        em_values_forget(to, bytes);
        return;
    }
    if (value) memset(to, value, bytes);
    else em_zero(to, bytes);
    em_values_right(to, bytes);
}

/* Whole pages go back to the host, which makes them again, as zeros, when they are read. */
void em_zero(void *to, size_t bytes) {
    const size_t page = 4096;
    char *start = to, *end = start + bytes;
    if (bytes <= 16 * page) {
        memset(start, 0, bytes);
        return;
    }
    char *first = (char *)(((uintptr_t)start + page - 1) & ~(page - 1));
    char *last = (char *)((uintptr_t)end & ~(page - 1));
    memset(start, 0, (size_t)(first - start));
    memset(last, 0, (size_t)(end - last));
    madvise(first, (size_t)(last - first), MADV_DONTNEED);
}
