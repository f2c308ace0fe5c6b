/* What the emulated libraries have in common: a card, its memory, its streams, and what is noted about a process.
 *
 * Written from the documented behaviour of the interfaces; no header of a vendor is used. Names that begin with `em_` are
 * ours and live in one library, libemulatedcard.so, which every emulated library is linked with. */
#ifndef EMULATED_H
#define EMULATED_H

#include <stddef.h>
#include <stdint.h>

/* Error numbers; runtime and driver share them. */
enum {
    EM_OK = 0,
    EM_INVALID_VALUE = 1,
    EM_OUT_OF_MEMORY = 2,
    EM_NO_DEVICE = 100,
    EM_INVALID_DEVICE = 101,
    EM_INVALID_HANDLE = 400,
    EM_NOT_FOUND = 500,
    EM_NOT_READY = 600,
    EM_NOT_SUPPORTED = 801,
};

#define EM_MAX_CARDS 64
#define EM_PAGE ((size_t)2 << 20) /* a driver maps memory of a card in pieces of 2 MiB */
#define EM_MIB ((uint64_t)1 << 20)

/* ---- card.c: the numbers of the cards; every card of a process has the same ------------------------------------------ */

typedef struct {
    char name[96];
    uint64_t memory_bytes;      /* as CUDA reports it */
    uint64_t nvml_memory_bytes; /* as NVML reports it: more, since a part is the driver's own */
    uint64_t context_bytes;     /* of one process; an assumption */
    int major, minor;           /* compute capability */
    int multiprocessors;
    int shared_per_multiprocessor, shared_per_block; /* bytes; per block: the most that a kernel may ask for */
    int l2_cache_bytes;
    int threads_per_multiprocessor;
    int bus_bits;
    int ecc; /* whether the card counts memory errors */
} EmCard;

const EmCard *em_card(void);
void em_lift_limit(void);         /* cards without an end from here on */
int em_count(void);               /* visible cards */
int em_count_present(void);       /* cards of the machine, whatever CUDA_VISIBLE_DEVICES says */
int em_physical(int device);      /* visible index -> index in the machine */
void em_uuid(int physical, unsigned char bytes[16]);
void em_uuid_text(int physical, char *text, unsigned size);
int em_attribute(int attribute, int device); /* cudaDeviceGetAttribute and cuDeviceGetAttribute: same numbers */
const char *em_option(const char *name);     /* environment variable; NULL if unset or empty */

/* ---- memory.c: address ranges of the cards, and how many bytes of each card are taken -------------------------------- */

int em_device(void); /* the thread's current card */
void em_set_device(int device);
void em_context(int device); /* create the context if there is none */
int em_has_context(int device);

int em_malloc(int device, size_t bytes, void **address);
int em_free(void *address);
int em_borrow(int device, size_t bytes, void **address); /* memory that another process counts */
int em_is_borrowed(const void *address);
int em_return(void *address);
int em_account(int device, int64_t bytes); /* take or return bytes of a card without an address */
void em_info(int device, size_t *free_bytes, size_t *total_bytes);

void em_range(void *address, size_t bytes, int device); /* declare that an address range belongs to a card */
void em_unrange(void *address);
int em_find(const void *address, int *device, void **start, size_t *bytes); /* 1 if it is memory of a card */

void em_pin(void *address, size_t bytes); /* pinned memory of the host */
void em_unpin(void *address);
int em_is_pinned(const void *address);

void em_copy(void *to, const void *from, size_t bytes);
void em_set(void *to, int value, size_t bytes);
void em_zero(void *to, size_t bytes);  /* any size; returns whole pages to the host */
void em_inject(uint64_t value);        /* the next 4 or 8 bytes that a card copies to the host are this number */

/* ---- known_bytes.c: which bytes of the cards hold what a real card would hold ------------------------------------------------- */

void em_values_right(const void *address, size_t bytes);
void em_values_unknown(const void *address, size_t bytes, const char *producer); /* `producer` is kept, not copied */
void em_values_forget(const void *address, size_t bytes);                        /* as after an allocation */
const char *em_values_producer(const void *address, size_t bytes); /* NULL: all right; else who made what is not */
int em_values_any_right(const void *address, size_t bytes);
void em_reading(const char *type, int steers); /* of this thread, until it is called again; type NULL: bytes */
void em_copy_all(int all); /* of this thread: copies of any size to a card are made */

/* Bytes that other ranks send: they arrive when somebody looks at them. */
typedef struct EmAwaited {
    int holders; /* the last one that lets go calls `end` */
    void (*arrive)(struct EmAwaited *); /* wait for them, and call em_values_arrived */
    void (*end)(struct EmAwaited *);
} EmAwaited;

void em_values_await(const void *address, size_t bytes, EmAwaited *awaited);
void em_values_arrived(EmAwaited *awaited, char *address, const char *bytes, const char *producer); /* bytes NULL: zeros */
int em_values_is_awaited(const EmAwaited *awaited); /* 0: all its bytes have been written over */
void em_hold(EmAwaited *awaited);
void em_let_go(EmAwaited *awaited);

/* ---- processes.c: what the living processes of a job hold, and what each has done ----------------------------------- */

enum { EM_TRAINS = 1, EM_GENERATES = 2, EM_COMPUTES = 4 }; /* profiler/emulation/card.py has the same */

void em_join(void);                            /* this process has an entry from here on */
void em_publish(const uint64_t *held);         /* of this process: bytes per physical card; the cards are locked */
void em_refused(int physical, uint64_t bytes); /* an allocation that failed */
void em_lock_cards(void);                      /* no process takes memory until they are unlocked */
void em_unlock_cards(void);
void em_did(unsigned what);
void em_rank(int rank, int ranks); /* in the group of all processes of torch */
void em_counts(int device, uint64_t allocated, uint64_t reserved); /* torch's, after each change */
void em_phase(int next); /* place of a phase in profiler/domain/memory.py */
void em_said(const char *text); /* the last sentence of a process that ends by an error */
uint64_t em_born(long pid);     /* 0: it has ended */
int em_rank_has_ended(int rank, int ranks); /* every process that was this rank; 0 if none was */
int em_folder(char *path, size_t size, const char *name); /* of a file of the job; 0 if it has no folder */
int em_processes(int physical, unsigned *pids, uint64_t *bytes, int most);
uint64_t em_held_by_others(int physical);

/* ---- course.c ---------------------------------------------------------------------------------------------------------- */

void em_course(int64_t entry, int card, int phase, uint64_t held, int is_own); /* place of the process in processes.c */

/* ---- sharing.c: memory that other processes open ------------------------------------------------------------------------ */

#define EM_HANDLE_BYTES 64

int em_share(const void *address, void *handle);
int em_open_shared(const void *handle, void **address);
int em_visible(int physical); /* index in the machine -> visible index; -1: not visible */

/* ---- streams.c --------------------------------------------------------------------------------------------------------- */

typedef struct {
    int device, priority;
    uint64_t capture; /* number of the capture that the stream takes part in, or 0 */
    uint64_t behind;  /* number of the last call of NCCL whose end the stream waits for, or 0 */
} EmStream;

typedef struct {
    double at_ms;
    uint64_t capture; /* of the stream that recorded the event */
    uint64_t epoch;   /* the synchronisation after which it was recorded */
    uint64_t behind;  /* of the stream */
} EmEvent;

EmStream *em_stream_create(int priority);
EmStream *em_stream(void *handle); /* of any handle; 0, 1 and 2 are the default streams of the thread's card */
EmEvent *em_event_create(void);
void em_event_record(EmEvent *event, void *stream);
int em_event_query(const EmEvent *event);
void em_stream_wait(void *stream, const EmEvent *event);
int em_stream_query(void);
void em_synchronised(void); /* host and card have met: everything recorded so far has been reached */
void em_meet(uint64_t behind); /* the same, after the calls of NCCL up to this number have ended */
void em_on_meeting(void (*function)(uint64_t behind));
uint64_t em_capture_begin(void *stream);
void em_capture_end(void *stream);

/* ---- marks.c: what a reader of the figures has to know about this process -------------------------------------------- */

void em_mark(const char *kind, const char *name); /* noted once per name */
int em_marks(char *text, int size);               /* lines "kind<TAB>name<TAB>times"; the length needed */
void em_forget_marks(void);
int em_unseen(const char *library, const char *name); /* an entry point without an answer was called */
void *em_unseen_function(const char *library, const char *name); /* a function that says so when it is called */

#endif
