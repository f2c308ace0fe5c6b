/* Streams, events and captures. Nothing runs, so a stream is only what the host is told about it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emulated.h"

/* An event is reached at once (early), or only when host and card have met after it was recorded (late). A real card is
 * between the two: blocks that other streams used return to the allocator when their event has been reached. */
static int late;
static uint64_t epoch = 1, captures = 0;

/* NCCL's process group keeps the tensors of a collective until a thread of its own, which looks every 100 ms, has seen its
 * event. Whether it has looked before memory is short differs from run to run. With late events it sees one only after
 * WATCHED_MS, so that every run is the one in which it looks late. */
#define WATCHED_MS 10000.0
static EmStream of_device[EM_MAX_CARDS]; /* default streams */

#define MOST_JOINED 256
static struct {
    EmStream *stream;
    uint64_t capture;
} joined[MOST_JOINED];
static int joined_count;

__attribute__((constructor)) static void start(void) {
    const char *option = em_option("EMULATED_EVENTS");
    late = option && *option == 'l';
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

EmStream *em_stream_create(int priority) {
    em_context(em_device());
    EmStream *stream = calloc(1, 64);
    stream->device = em_device();
    stream->priority = priority;
    return stream;
}

EmStream *em_stream(void *handle) {
    if ((uintptr_t)handle > 2) return handle;
    EmStream *stream = &of_device[em_device()];
    stream->device = em_device();
    return stream;
}

EmEvent *em_event_create(void) { return calloc(1, sizeof(EmEvent)); }

void em_event_record(EmEvent *event, void *stream) {
    event->at_ms = now_ms();
    event->capture = em_stream(stream)->capture;
    event->behind = em_stream(stream)->behind;
    event->epoch = epoch;
}

static int is_watchdog(void) {
    static __thread int answer = -1;
    char name[16] = "";
    if (answer < 0) answer = !pthread_getname_np(pthread_self(), name, sizeof name) && !strcmp(name, "pt_nccl_watchdg");
    return answer;
}

int em_event_query(const EmEvent *event) {
    if (!late || !event->epoch) return EM_OK;
    if (event->epoch == epoch) return EM_NOT_READY;
    return is_watchdog() && now_ms() - event->at_ms < WATCHED_MS ? EM_NOT_READY : EM_OK;
}

int em_stream_query(void) { return late ? EM_NOT_READY : EM_OK; }

void em_synchronised(void) { __atomic_add_fetch(&epoch, 1, __ATOMIC_SEQ_CST); }

static void (*on_meeting)(uint64_t);
void em_on_meeting(void (*function)(uint64_t)) { on_meeting = function; }

void em_meet(uint64_t behind) {
    if (behind && on_meeting) on_meeting(behind);
    em_synchronised();
}

/* A stream that waits for an event of a capturing stream takes part in the capture. */
void em_stream_wait(void *handle, const EmEvent *event) {
    EmStream *stream = em_stream(handle);
    if (event->behind > stream->behind) stream->behind = event->behind;
    if (!event->capture || stream->capture == event->capture || joined_count == MOST_JOINED) return;
    stream->capture = event->capture;
    joined[joined_count].stream = stream;
    joined[joined_count++].capture = event->capture;
}

uint64_t em_capture_begin(void *stream) { return em_stream(stream)->capture = ++captures; }

void em_capture_end(void *handle) {
    uint64_t capture = em_stream(handle)->capture;
    int kept = 0;
    em_stream(handle)->capture = 0;
    for (int i = 0; i < joined_count; i++) {
        if (joined[i].capture == capture) joined[i].stream->capture = 0;
        else joined[kept++] = joined[i];
    }
    joined_count = kept;
}
