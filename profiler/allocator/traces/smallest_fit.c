/* The ordinary case of the caching allocator in C: each request takes the smallest free block that is large enough.

   The same rules as `profiler/allocator/model/caching.py`, which is what a reader should read, and which tests compare
   with this file. It stops where new memory is needed: what is taken from the driver, and what a full card does, is
   decided by the caller, `smallest_fit.py`. Built by `make install` where there is a C compiler.

   While a model decodes, most events are of runs that free each block that they allocate and no other one. What such a
   run does depends on few free blocks, and it leaves all as it was: where it finds the same ones as before, its peaks
   alone are noted. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1, SMALLEST_ROOM = 64, BUCKET = 32 };
enum { LONGEST_RUN = 32, MOST_FOUND = 8, RUNS = 256 };
enum { NO_HOST_MEMORY = -1, UNKNOWN_BLOCK = -2 };

typedef struct {
    int64_t address, size;
    int32_t before, after; /* neighbours in the segment, or NONE; `after` links unused blocks */
    int8_t is_allocated, is_small;
} Block;

typedef struct {
    int64_t size, address;
    int32_t block;
} Free;

typedef struct {
    int64_t count; /* never 0 */
    Free free[BUCKET];
} Bucket;

/* Free blocks by size, then address, in buckets: there may be ten thousand, and an array would be moved each time. */
typedef struct {
    Bucket **buckets;
    int64_t count, room;
} Pool;

typedef struct {
    int64_t bucket, at;
} Place;

/* A run as it was replayed last: what it requests, what it found, and its most bytes above the levels before it. */
typedef struct {
    int32_t length, blocks, found_count, highest; /* `highest`: the event of the highest level, as `highest_event` */
    int32_t events[LONGEST_RUN];                  /* with blocks numbered from 1 */
    int64_t sizes[LONGEST_RUN / 2], actual[LONGEST_RUN / 2];
    int64_t smallest, allocated, inactive, unreleasable;
    Free found[MOST_FOUND]; /* from the smallest that could serve it up to the largest that it took */
} Run;

typedef struct {
    /* Counters of `CachingAllocator`, in bytes, which the caller reads and sets; and the event of the highest level. */
    int64_t allocated, peak_allocated, inactive, peak_inactive, peak_unreleasable, highest, highest_event;
    int64_t min_block, small; /* `MIN_BLOCK_BYTES` and `SMALL_BYTES` of settings.py */
    int64_t numbers;
    int32_t *block_of; /* by number in the trace; NONE if it is not in use */
    Block *blocks;
    int64_t count, room;
    int32_t unused;
    Pool pools[2]; /* large, small */
    Free taken; /* the free block that served the last request */
    Run runs[RUNS];
} Allocator;

static int is_before(const Free *one, int64_t size, int64_t address) {
    return one->size < size || (one->size == size && one->address < address);
}

/* The first free block that is not before (size, address); after the last one, the bucket after the last one. */
static Place place_of(const Pool *pool, int64_t size, int64_t address) {
    int64_t low = 0, high = pool->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const Bucket *bucket = pool->buckets[middle];
        if (is_before(&bucket->free[bucket->count - 1], size, address)) low = middle + 1;
        else high = middle;
    }
    Place place = {low, 0};
    if (low == pool->count) return place;
    for (high = pool->buckets[low]->count, low = 0; low < high;) {
        int64_t middle = (low + high) / 2;
        if (is_before(&pool->buckets[place.bucket]->free[middle], size, address)) low = middle + 1;
        else high = middle;
    }
    place.at = low;
    return place;
}

/* Make room for a bucket at `place`, with the last `count` blocks of the one before it. */
static int add_bucket(Pool *pool, int64_t place, int64_t count) {
    if (pool->count == pool->room) {
        int64_t room = pool->room ? 2 * pool->room : SMALLEST_ROOM;
        Bucket **larger = realloc(pool->buckets, room * sizeof(Bucket *));
        if (!larger) return 0;
        pool->buckets = larger;
        pool->room = room;
    }
    Bucket *added = malloc(sizeof(Bucket));
    if (!added) return 0;
    memmove(&pool->buckets[place + 1], &pool->buckets[place], (pool->count - place) * sizeof(Bucket *));
    pool->buckets[place] = added;
    pool->count++;
    added->count = count;
    if (count) {
        Bucket *before = pool->buckets[place - 1];
        before->count -= count;
        memcpy(added->free, &before->free[before->count], count * sizeof(Free));
    }
    return 1;
}

static void remove_bucket(Pool *pool, int64_t place) {
    free(pool->buckets[place]);
    pool->count--;
    memmove(&pool->buckets[place], &pool->buckets[place + 1], (pool->count - place) * sizeof(Bucket *));
}

static int add_free(Allocator *it, int32_t number) {
    const Block *block = &it->blocks[number];
    Pool *pool = &it->pools[block->is_small];
    Place place = {0, 0};
    if (pool->count) place = place_of(pool, block->size, block->address);
    else if (!add_bucket(pool, 0, 0)) return 0;
    if (place.bucket == pool->count) place = (Place){pool->count - 1, pool->buckets[pool->count - 1]->count};
    if (pool->buckets[place.bucket]->count == BUCKET) {
        if (!add_bucket(pool, place.bucket + 1, BUCKET / 2)) return 0;
        if (place.at > BUCKET / 2) place = (Place){place.bucket + 1, place.at - BUCKET / 2};
    }
    Bucket *bucket = pool->buckets[place.bucket];
    memmove(&bucket->free[place.at + 1], &bucket->free[place.at], (bucket->count - place.at) * sizeof(Free));
    bucket->free[place.at] = (Free){block->size, block->address, number};
    bucket->count++;
    return 1;
}

static void remove_at(Pool *pool, Place place) {
    Bucket *bucket = pool->buckets[place.bucket];
    bucket->count--;
    memmove(&bucket->free[place.at], &bucket->free[place.at + 1], (bucket->count - place.at) * sizeof(Free));
    if (!bucket->count) remove_bucket(pool, place.bucket);
}

static void forget(Allocator *it, int32_t number) {
    it->blocks[number].after = it->unused;
    it->unused = number;
}

static int32_t new_block(Allocator *it) {
    if (it->unused != NONE) {
        int32_t number = it->unused;
        it->unused = it->blocks[number].after;
        return number;
    }
    if (it->count == it->room) {
        int64_t room = it->room ? 2 * it->room : SMALLEST_ROOM;
        Block *larger = room > INT32_MAX ? NULL : realloc(it->blocks, room * sizeof(Block));
        if (!larger) return NONE;
        it->blocks = larger;
        it->room = room;
    }
    return (int32_t)it->count++;
}

static void raise_peaks(Allocator *it) {
    if (it->inactive > it->peak_inactive) it->peak_inactive = it->inactive;
    if (it->allocated + it->inactive > it->peak_unreleasable) it->peak_unreleasable = it->allocated + it->inactive;
}

/* 1: done; 0: no free block is large enough; NO_HOST_MEMORY. */
static int allocate(Allocator *it, int64_t number, int64_t size, int64_t event, int64_t *actual) {
    int is_small = size <= it->small;
    Pool *pool = &it->pools[is_small];
    Place place = place_of(pool, size, INT64_MIN);
    if (place.bucket == pool->count) return 0;
    it->taken = pool->buckets[place.bucket]->free[place.at];
    int32_t found = it->taken.block;
    int64_t rest = it->blocks[found].size - size;
    int is_split = it->blocks[found].before != NONE || it->blocks[found].after != NONE;
    if (rest >= (is_small ? it->min_block : it->small + 1)) {
        int32_t first = new_block(it);
        if (first == NONE) return NO_HOST_MEMORY;
        Block *end = &it->blocks[found];
        it->blocks[first] = (Block){end->address, size, end->before, found, 0, (int8_t)is_small};
        if (end->before != NONE) it->blocks[end->before].after = first;
        end->before = first;
        end->address += size;
        end->size = rest;
        remove_at(pool, place);
        if (!add_free(it, found)) return NO_HOST_MEMORY;
        it->inactive += is_split ? -size : rest;
        found = first;
    } else {
        remove_at(pool, place);
        if (is_split) it->inactive -= it->blocks[found].size;
    }
    it->blocks[found].is_allocated = 1;
    it->block_of[number] = found;
    actual[number] = it->blocks[found].size;
    it->allocated += it->blocks[found].size;
    if (it->allocated > it->peak_allocated) it->peak_allocated = it->allocated;
    if (it->allocated > it->highest) {
        it->highest = it->allocated;
        it->highest_event = event;
    }
    raise_peaks(it);
    return 1;
}

/* Merge a neighbour into a block that is in no pool, if it is free; return its bytes, or 0. */
static int64_t merge(Allocator *it, int32_t number, int32_t neighbour) {
    if (neighbour == NONE || it->blocks[neighbour].is_allocated) return 0;
    Block *block = &it->blocks[number], *other = &it->blocks[neighbour];
    Pool *pool = &it->pools[other->is_small];
    remove_at(pool, place_of(pool, other->size, other->address));
    if (neighbour == block->before) {
        block->address = other->address;
        block->before = other->before;
        if (block->before != NONE) it->blocks[block->before].after = number;
    } else {
        block->after = other->after;
        if (block->after != NONE) it->blocks[block->after].before = number;
    }
    block->size += other->size;
    int64_t size = other->size;
    forget(it, neighbour);
    return size;
}

static int release(Allocator *it, int64_t number) {
    int32_t found = it->block_of[number];
    Block *block = &it->blocks[found];
    it->block_of[number] = NONE;
    it->allocated -= block->size;
    block->is_allocated = 0;
    int64_t was_inactive = merge(it, found, block->before);
    was_inactive += merge(it, found, block->after);
    if (!add_free(it, found)) return 0;
    int is_split = block->before != NONE || block->after != NONE;
    it->inactive += (is_split ? block->size : 0) - was_inactive;
    if (it->inactive > it->peak_inactive) it->peak_inactive = it->inactive;
    return 1;
}

/* Replay an event: 1: done; 0: it needs new memory; or what failed. */
static int replay(Allocator *it, const int32_t *events, const int64_t *sizes, int64_t *actual, int64_t at) {
    int64_t number = (events[at] > 0 ? events[at] : -(int64_t)events[at]) - 1;
    if (number < 0 || number >= it->numbers) return UNKNOWN_BLOCK;
    if (!sizes[number]) return 1;
    if (events[at] > 0) return allocate(it, number, sizes[number], at, actual);
    if (it->block_of[number] == NONE) return UNKNOWN_BLOCK;
    return release(it, number) ? 1 : NO_HOST_MEMORY;
}

/* Whether events request what a run did. */
static int repeats(const Run *run, const int32_t *events, const int64_t *sizes, int64_t most, int64_t numbers) {
    int32_t first = events[0] - 1, differ = 0;
    if (!run->length || run->length > most || first + run->blocks > numbers) return 0;
    for (int at = 0; at < run->length; at++) {
        differ |= events[at] ^ (run->events[at] + (run->events[at] > 0 ? first : -first));
    }
    return !differ && !memcmp(run->sizes, &sizes[first], run->blocks * sizeof(int64_t));
}

/* Note the longest run with which events begin; it has blocks of one pool, numbered in their order. */
static void note_requests(const Allocator *it, Run *run, const int32_t *events, const int64_t *sizes, int64_t most) {
    int32_t first = events[0], made = 0;
    int is_small = sizes[first - 1] <= it->small;
    uint32_t in_use = 0;
    run->length = 0;
    for (int at = 0; at < LONGEST_RUN && at < most; at++) {
        int64_t block = (events[at] > 0 ? events[at] : -(int64_t)events[at]) - first;
        if (events[at] > 0) {
            if (block != made || made == LONGEST_RUN / 2 || events[at] > it->numbers) return;
            run->sizes[made] = sizes[events[at] - 1];
            if (!run->sizes[made] || (run->sizes[made] <= it->small) != is_small) return;
            in_use |= 1u << made++;
        } else {
            if (block < 0 || block >= made || !(in_use >> block & 1)) return;
            in_use &= ~(1u << block);
        }
        run->events[at] = events[at] + (events[at] > 0 ? 1 - first : first - 1);
        if (!in_use) run->length = at + 1, run->blocks = made;
    }
}

/* The free block at a place, which moves to the next one; NULL after the last one. */
static const Free *next(const Pool *pool, Place *place) {
    if (place->bucket == pool->count) return NULL;
    const Bucket *bucket = pool->buckets[place->bucket];
    const Free *found = &bucket->free[place->at++];
    if (place->at == bucket->count) *place = (Place){place->bucket + 1, 0};
    return found;
}

/* Replay a run and note what it finds; return the event after it, or the one that was not done. */
static int64_t note(
    Allocator *it, Run *run, const int32_t *events, const int64_t *sizes, int64_t *actual, int64_t first, int *done) {
    int64_t allocated = it->allocated, inactive = it->inactive, end = first + run->length;
    Free last = {0, 0, NONE};
    run->length = 0; /* until all is known */
    run->smallest = INT64_MAX;
    run->allocated = run->inactive = run->unreleasable = 0;
    for (int64_t at = first; at < end; at++) {
        if ((*done = replay(it, events, sizes, actual, at)) <= 0) return at;
        if (events[at] > 0) {
            if (sizes[events[at] - 1] < run->smallest) run->smallest = sizes[events[at] - 1];
            if (is_before(&last, it->taken.size, it->taken.address)) last = it->taken;
        }
        int64_t more = it->allocated - allocated, more_inactive = it->inactive - inactive;
        if (more > run->allocated) run->allocated = more, run->highest = (int32_t)(at - first);
        if (more_inactive > run->inactive) run->inactive = more_inactive;
        if (more + more_inactive > run->unreleasable) run->unreleasable = more + more_inactive;
    }
    memcpy(run->actual, &actual[events[first] - 1], run->blocks * sizeof(int64_t));
    const Pool *pool = &it->pools[run->smallest <= it->small];
    Place place = place_of(pool, run->smallest, INT64_MIN);
    run->found_count = 0;
    for (const Free *found; (found = next(pool, &place)) && !is_before(&last, found->size, found->address);) {
        if (run->found_count == MOST_FOUND) return end;
        run->found[run->found_count++] = *found;
    }
    run->length = (int32_t)(end - first);
    return end;
}

/* Raise the peaks as a run does, if it finds the same as before; return whether it does. */
static int pass_over(Allocator *it, const Run *run, const Pool *pool, Place place, int64_t at) {
    for (int each = 0; each < run->found_count; each++) {
        const Free *found = next(pool, &place), *before = &run->found[each];
        if (!found || found->size != before->size || found->address != before->address) return 0;
    }
    int64_t highest = it->allocated + run->allocated, unreleasable = it->allocated + it->inactive + run->unreleasable;
    if (highest > it->peak_allocated) it->peak_allocated = highest;
    if (highest > it->highest) it->highest = highest, it->highest_event = at + run->highest;
    if (it->inactive + run->inactive > it->peak_inactive) it->peak_inactive = it->inactive + run->inactive;
    if (unreleasable > it->peak_unreleasable) it->peak_unreleasable = unreleasable;
    return 1;
}

/* Replay the run with which events begin, or one event; return the event after it, or the one that was not done. */
static int64_t replay_run(
    Allocator *it, const int32_t *events, const int64_t *sizes, int64_t *actual, int64_t at, int64_t end, int *done) {
    int64_t first = events[at] - 1;
    int begins = at + 1 < end && (events[at + 1] == -events[at] || events[at + 1] == events[at] + 1);
    if (begins && first >= 0 && first < it->numbers && sizes[first]) {
        const Pool *pool = &it->pools[sizes[first] <= it->small];
        Place place = place_of(pool, sizes[first], INT64_MIN), begin = place;
        const Free *found = next(pool, &begin);
        Run *run = &it->runs[(sizes[first] + (found ? 31 * found->address : 0)) / it->min_block % RUNS];
        if (repeats(run, &events[at], sizes, end - at, it->numbers)) {
            if (run->smallest != sizes[first]) place = place_of(pool, run->smallest, INT64_MIN);
            if (pass_over(it, run, pool, place, at)) {
                memcpy(&actual[first], run->actual, run->blocks * sizeof(int64_t));
                return at + run->length;
            }
        } else note_requests(it, run, &events[at], sizes, end - at);
        if (run->length) return note(it, run, events, sizes, actual, at, done);
    }
    *done = replay(it, events, sizes, actual, at);
    return *done > 0 ? at + 1 : at;
}

void smallest_fit_delete(Allocator *it) {
    if (!it) return;
    free(it->block_of);
    free(it->blocks);
    for (int each = 0; each < 2; each++) {
        for (int64_t place = 0; place < it->pools[each].count; place++) free(it->pools[each].buckets[place]);
        free(it->pools[each].buckets);
    }
    free(it);
}

/* Let blocks have numbers up to before `numbers`; return 1, or 0 if the host has no memory. */
int smallest_fit_number_up_to(Allocator *it, int64_t numbers) {
    if (numbers <= it->numbers) return 1;
    int32_t *larger = realloc(it->block_of, numbers * sizeof(int32_t));
    if (!larger) return 0;
    memset(larger + it->numbers, NONE, (numbers - it->numbers) * sizeof(int32_t));
    it->block_of = larger;
    it->numbers = numbers;
    return 1;
}

Allocator *smallest_fit_new(int64_t min_block, int64_t small) {
    Allocator *it = calloc(1, sizeof(Allocator));
    if (!it) return NULL;
    it->min_block = min_block;
    it->small = small;
    it->highest_event = NONE;
    it->unused = NONE;
    return it;
}

/* Replay events from `first` to before `end`; return the first one that needs new memory, or `end`, or what failed.
   `sizes` has the bytes of each block, 0 for what is never allocated; `actual` gets those that a block really has. */
int64_t smallest_fit_run(
    Allocator *it, const int32_t *events, const int64_t *sizes, int64_t *actual, int64_t first, int64_t end) {
    int done = 1;
    for (int64_t at = first; at < end;) {
        at = replay_run(it, events, sizes, actual, at, end, &done);
        if (done <= 0) return done ? done : at;
    }
    return end;
}

/* A cycle of events that repeats: its blocks have numbers from `made` on, as in the cycle before it, whose blocks move to
   the numbers before those, as do the ones of `memory` cycles. `at` is NONE until a time begins. */
typedef struct {
    int64_t first, end, made, blocks, memory, times, time, at;
    const int64_t *requested, *growth; /* bytes of each block */
} Cycle;

/* Begin a time: return 1, or 0 if a block is in use that no cycle frees. */
static int begin(Allocator *it, const Cycle *cycle, int64_t *sizes, int64_t *actual) {
    int64_t kept = cycle->memory * cycle->blocks, low = cycle->made - kept;
    if (low < 0 || cycle->made + cycle->blocks > it->numbers) return 0;
    for (int64_t each = 0; each < cycle->blocks; each++) {
        if (it->block_of[low + each] != NONE) return 0;
    }
    memmove(&it->block_of[low], &it->block_of[low + cycle->blocks], kept * sizeof(int32_t));
    memmove(&actual[low], &actual[low + cycle->blocks], kept * sizeof(int64_t));
    for (int64_t each = 0; each < cycle->blocks; each++) {
        int64_t size = cycle->requested[each] + (cycle->time + 1) * cycle->growth[each];
        it->block_of[cycle->made + each] = NONE;
        if (cycle->growth[each]) sizes[cycle->made + each] = (size + it->min_block - 1) / it->min_block * it->min_block;
    }
    return 1;
}

/* Replay a cycle the rest of its times; return the event that needs new memory, or the one after it, or what failed. */
int64_t smallest_fit_repeat(
    Allocator *it, const int32_t *events, int64_t *sizes, int64_t *actual, Cycle *cycle) {
    for (int done = 1; cycle->time < cycle->times; cycle->time++, cycle->at = NONE) {
        if (cycle->at == NONE) {
            if (!begin(it, cycle, sizes, actual)) return UNKNOWN_BLOCK;
            cycle->at = cycle->first;
        }
        while (cycle->at < cycle->end) {
            cycle->at = replay_run(it, events, sizes, actual, cycle->at, cycle->end, &done);
            if (done <= 0) return done ? done : cycle->at;
        }
    }
    return cycle->end;
}

/* Add a segment that the driver gave; return 1, or 0 if the host has no memory. */
int smallest_fit_add_segment(Allocator *it, int64_t address, int64_t size, int is_small) {
    int32_t number = new_block(it);
    if (number == NONE) return 0;
    it->blocks[number] = (Block){address, size, NONE, NONE, 0, (int8_t)is_small};
    return add_free(it, number);
}

/* Give back all segments that are entirely free; return their bytes. */
int64_t smallest_fit_empty_cache(Allocator *it) {
    int64_t released = 0;
    for (int each = 0; each < 2; each++) {
        Pool *pool = &it->pools[each];
        for (int64_t place = pool->count - 1; place >= 0; place--) {
            Bucket *bucket = pool->buckets[place];
            int64_t kept = 0;
            for (int64_t at = 0; at < bucket->count; at++) {
                const Block *block = &it->blocks[bucket->free[at].block];
                if (block->before != NONE || block->after != NONE) {
                    bucket->free[kept++] = bucket->free[at];
                    continue;
                }
                released += block->size;
                forget(it, bucket->free[at].block);
            }
            bucket->count = kept;
            if (!kept) remove_bucket(pool, place);
        }
    }
    return released;
}
