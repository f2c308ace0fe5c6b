/* Shared by the files of libnccl. */
#ifndef NCCL_H
#define NCCL_H

#include "emulated.h"

/* ---- channels.c: messages in the order in which one process writes them; others read them when they like --------------- */

#define MOST_MESSAGES 1024 /* that a channel keeps; a queue of launches on a real card has that length */

typedef struct {
    int64_t call, type, operation, root;
    uint64_t count;     /* elements that the call names */
    uint64_t at, bytes; /* its content in the file; no bytes: it has none */
    char producer[64];  /* who made what is not right of it; empty if all is */
} Message;

typedef struct {
    int64_t pid;
    uint64_t born;
    uint32_t bell;     /* of a futex; rung after each message */
    uint32_t closed;   /* nothing more is written */
    uint64_t written;  /* messages so far */
    uint64_t read;     /* a reader needs none before this number: of this rank in its group, or of the one that receives */
    Message messages[MOST_MESSAGES];
} Channel;

typedef struct {
    char name[128];
    Channel *channel; /* NULL: it is not there yet */
    int file;
    uint64_t end, released; /* where the next content goes, and up to where disk space was given back */
} Port;

int port_make(Port *port);  /* this process writes; 0 if the folder cannot be written */
int port_find(Port *port);  /* another one writes; 1 if it is there */
void port_write(Port *port, Message *message, const void *content, uint64_t needed); /* from message `needed` on */
const Message *port_message(const Port *port, uint64_t number);
int port_read(const Port *port, const Message *message, uint64_t from, void *content, size_t bytes);
void port_wait(const Port *port, uint64_t number, unsigned ms); /* for a message of that number, or some time */
void port_close(Port *port);

/* ---- groups.c: ranks that are processes, and the wait for one -------------------------------------------------------------- */

typedef struct Communicator {
    int ranks, rank, device;
    int is_exchanged; /* its ranks are processes; else all are taken to hold what this one holds */
    char name[64];
    uint64_t turn;    /* calls of the whole group so far */
    int shrunk;
    Port *ports;                /* of each rank, for calls of the whole group */
    Port *sends, *receives;     /* to and from each rank */
    uint64_t *sent, *received;
} Communicator;

/* Types by number: int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 and two of 8 bits. */
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, SCALED };
enum { ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, ALL_TO_ALL, SPLIT, SEND, RECEIVE };

#define GR_LOOK_MS 50 /* how often a rank that is waited for is looked at */

void gr_join(Communicator *c);
const char *gr_name(int call);
double gr_now_s(void);
double gr_most_s(void);
const char *gr_reason(Communicator *c, int rank); /* why a rank can send nothing more; NULL if it can */
void gr_give_up(Communicator *c, int rank, int call, const char *reason);
void gr_end_process(const char *sentence);

/* Wait until `is_there` says so, or end this process: `rank` is waited for, for the sake of `call`. */
#define WAIT(c, rank, call, is_there, pause)                                                                  \
    do {                                                                                                       \
        double begun_s = gr_now_s(), looked_s = begun_s;                                                          \
        while (!(is_there)) {                                                                                  \
            pause;                                                                                             \
            if (gr_now_s() - looked_s < GR_LOOK_MS / 1e3) continue;                                                  \
            looked_s = gr_now_s();                                                                                \
            const char *reason = gr_reason(c, rank);                                                           \
            if (!(is_there) && (reason || looked_s - begun_s > gr_most_s())) gr_give_up(c, rank, call, reason);        \
        }                                                                                                      \
    } while (0)

/* ---- exchange.c: what ranks that are processes send each other ------------------------------------------------------------ */

typedef struct {
    int call;
    const void *from;
    void *to;
    size_t count; /* elements as the entry point has them */
    int type, operation, root;
    double factor; /* of an operation that scales */
} Call;

void ex_leave(Communicator *c, int waits);
void ex_call(Communicator *c, const Call *call, void *stream);
void ex_send(Communicator *c, const Call *call); /* root: to whom */
void ex_receive(Communicator *c, const Call *call, void *stream);
int ex_split(Communicator *c, int colour, int key, int *rank, int *ranks); /* returns the turn */

/* ---- reductions.c ----------------------------------------------------------------------------------------------------------- */

size_t nc_bytes(uint64_t count, int type);
int nc_is_whole(int type);
void nc_combine(void *into, const void *with, size_t count, int type, int operation);
void nc_divide(void *values, size_t count, int type, int by);
void nc_scale(void *values, size_t count, int type, double by);
double nc_value(const void *value, int type); /* a float of any width; 1 of other types */

#endif
