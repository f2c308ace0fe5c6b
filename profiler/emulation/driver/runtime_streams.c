/* libcudart: streams, events, graphs. */
#include <stdlib.h>

#include "emulated.h"
#include "runtime.h"

int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    *stream = em_stream_create(priority);
    return EM_OK;
}
int cudaStreamCreate(void **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
int cudaStreamDestroy(void *stream) { return EM_OK; } /* kept: events may still name it */
int cudaStreamSynchronize(void *stream) {
    em_meet(em_stream(stream)->behind);
    return EM_OK;
}
int cudaStreamQuery(void *stream) { return em_stream_query(); }
int cudaStreamGetPriority(void *stream, int *priority) {
    *priority = em_stream(stream)->priority;
    return EM_OK;
}
int cudaStreamGetDevice(void *stream, int *device) {
    *device = em_stream(stream)->device;
    return EM_OK;
}
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    em_stream_wait(stream, event);
    return EM_OK;
}
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    function(data);
    return EM_OK;
}
int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data, unsigned flags) {
    function(stream, EM_OK, data);
    return EM_OK;
}

/* ---- events ---------------------------------------------------------------------------------------------------------------- */

int cudaEventCreateWithFlags(void **event, unsigned flags) {
    *event = em_event_create();
    return EM_OK;
}
int cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(void *event) {
    free(event);
    return EM_OK;
}
int cudaEventRecord(void *event, void *stream) {
    em_event_record(event, stream);
    return EM_OK;
}
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { return cudaEventRecord(event, stream); }
int cudaEventQuery(void *event) { return em_event_query(event); }
int cudaEventSynchronize(void *event) {
    em_meet(((EmEvent *)event)->behind);
    return EM_OK;
}

/* Time of the host. It says nothing about a card, and is never 0, since programs divide by it. */
int cudaEventElapsedTime(float *ms, void *from, void *to) {
    double passed = ((EmEvent *)to)->at_ms - ((EmEvent *)from)->at_ms;
    *ms = passed > 0 ? (float)passed : 0.001f;
    return EM_OK;
}
int cudaEventElapsedTime_v2(float *ms, void *from, void *to) { return cudaEventElapsedTime(ms, from, to); }

/* ---- captures: kernels are not run, so a graph is the fact that a stream captures; the allocator then uses the graph's pool */

static int new_object(void **object) {
    *object = calloc(1, 64);
    return EM_OK;
}

int cudaStreamBeginCapture(void *stream, int mode) {
    em_capture_begin(stream);
    return EM_OK;
}
int cudaStreamEndCapture(void *stream, void **graph) {
    em_capture_end(stream);
    return new_object(graph);
}
int cudaStreamIsCapturing(void *stream, int *status) {
    *status = em_stream(stream)->capture != 0;
    return EM_OK;
}
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *number) {
    *status = em_stream(stream)->capture != 0;
    if (number) *number = em_stream(stream)->capture;
    return EM_OK;
}
int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *number) {
    return cudaStreamGetCaptureInfo(stream, status, number);
}
int cudaStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *number) {
    return cudaStreamGetCaptureInfo(stream, status, number);
}
int cudaThreadExchangeStreamCaptureMode(int *mode) { return EM_OK; }
int cudaGraphCreate(void **graph, unsigned flags) { return new_object(graph); }
int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) { return new_object(executable); }
int cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    return new_object(executable);
}
int cudaGraphGetNodes(void *graph, void *nodes, size_t *count) {
    *count = 1; /* torch warns about an empty graph */
    return EM_OK;
}
