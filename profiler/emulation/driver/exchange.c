/* Ranks that are processes send each other what steers the host: integers, and few floats. Larger messages keep no content.
 *
 * Nothing runs on a card, so a call writes what this rank sends and returns, as a launch does. What it receives arrives when
 * an operator or the host looks at it (known_bytes.c), or when host and card meet. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

static const size_t most_whole = (size_t)32 << 20; /* bytes of integers that are sent */
static const size_t most_any = (size_t)64 << 10;   /* bytes of floats, and of integers that are not known */
static const int most_awaited = 256;               /* calls; before more are, the oldest one has to arrive */

typedef struct Awaited {
    EmAwaited base;
    struct Awaited *next; /* a later call */
    Communicator *group;
    Call call;
    uint64_t number, turn; /* of all calls of this process, and of the group or of the pair */
    pthread_mutex_t lock;
    int has_arrived;
} Awaited;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static Awaited *first, **last = &first;
static int awaited_count;
static uint64_t numbers;

static void meet(uint64_t behind);

static void forget(void) {
    pthread_mutex_init(&list_lock, NULL);
    first = NULL;
    last = &first;
    awaited_count = 0;
}

__attribute__((constructor)) static void start(void) {
    em_on_meeting(meet);
    pthread_atfork(NULL, NULL, forget);
}

/* ---- sending ----------------------------------------------------------------------------------------------------------------- */

/* Elements that one rank sends in a call, for each that the entry point names. */
static size_t parts(const Communicator *c, int call) {
    return call == REDUCE_SCATTER || call == ALL_TO_ALL ? (size_t)c->ranks : 1;
}

static int is_sent(const Communicator *c, const Call *call) {
    size_t bytes = nc_bytes(call->count, call->type) * parts(c, call->call);
    return bytes <= (nc_is_whole(call->type) ? most_whole : most_any);
}

static void send_message(Port *port, const Communicator *c, const Call *call, int has_content, uint64_t needed) {
    Message message = {call->call, call->type, call->operation, call->root, call->count};
    size_t bytes = nc_bytes(call->count, call->type) * parts(c, call->call);
    void *content = NULL;
    if (has_content && is_sent(c, call)) {
        const char *producer = em_values_producer(call->from, bytes);
        if (producer) snprintf(message.producer, sizeof message.producer, "%s", producer);
        if (!producer || bytes <= most_any) content = malloc(bytes + 1);
    }
    if (content) {
        memcpy(content, call->from, bytes);
        if (call->operation == SCALED) nc_scale(content, call->count * parts(c, call->call), call->type, call->factor);
        message.bytes = bytes;
    }
    port_write(port, &message, content, needed);
    free(content);
}

static uint64_t read_by_all(const Communicator *c) {
    uint64_t least = UINT64_MAX;
    for (int rank = 0; rank < c->ranks; rank++) {
        uint64_t read = port_find(&c->ports[rank]) ? __atomic_load_n(&c->ports[rank].channel->read, __ATOMIC_ACQUIRE) : 0;
        if (read < least) least = read;
    }
    return least;
}

/* What this rank needs no more: calls before the first one that has not arrived. */
static void note_read(Communicator *c) {
    uint64_t turn = c->turn;
    pthread_mutex_lock(&list_lock);
    for (Awaited *each = first; each; each = each->next)
        if (each->group == c && each->call.call != RECEIVE && each->turn < turn) turn = each->turn;
    if (c->ports[c->rank].channel) __atomic_store_n(&c->ports[c->rank].channel->read, turn, __ATOMIC_RELEASE);
    for (int rank = 0; rank < c->ranks; rank++) {
        Channel *channel = c->receives[rank].channel;
        uint64_t read = c->received[rank];
        if (!channel) continue;
        for (Awaited *each = first; each; each = each->next)
            if (each->group == c && each->call.call == RECEIVE && each->call.root == rank && each->turn < read) read = each->turn;
        __atomic_store_n(&channel->read, read, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&list_lock);
}

/* ---- receiving --------------------------------------------------------------------------------------------------------------- */

static const char *kept_name(const char *name) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char *kept[256];
    static int count;
    const char *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count && !found; i++)
        if (!strcmp(kept[i], name)) found = kept[i];
    if (!found && count < 256) found = kept[count++] = strdup(name);
    pthread_mutex_unlock(&lock);
    return found ? found : "another rank";
}

static void check_same(const Communicator *c, int rank, const Message *message, const Call *call) {
    int expected = call->call == RECEIVE ? SEND : call->call;
    size_t bytes = nc_bytes(call->count, call->type), sent = nc_bytes(message->count, (int)message->type);
    int is_same = message->call == expected && sent == bytes && message->operation == call->operation;
    if (is_same && (call->call == BROADCAST || call->call == REDUCE)) is_same = message->root == call->root;
    if (is_same) return;
    char sentence[320];
    snprintf(sentence, sizeof sentence,
             "Rank %d calls %s of %zu bytes, and rank %d answers with %s of %zu bytes: ranks of a group make the same calls.",
             c->rank, gr_name(call->call), bytes, rank, gr_name((int)message->call), sent);
    gr_end_process(sentence);
}

static const Message *message_of(Communicator *c, Port *port, int rank, uint64_t turn, const Call *call) {
    WAIT(c, rank, call->call == RECEIVE ? SEND : call->call,
         port_find(port) && __atomic_load_n(&port->channel->written, __ATOMIC_ACQUIRE) > turn, port_wait(port, turn, GR_LOOK_MS));
    const Message *message = port_message(port, turn);
    check_same(c, rank, message, call);
    return message;
}

/* Receive what `rank` sends of a call into `place`. Returns who made what is not right; `has` is 0 if there is no content. */
static const char *receive(Communicator *c, const Awaited *one, int rank, uint64_t from, char *place, size_t bytes, int *has) {
    Port *port = one->call.call == RECEIVE ? &c->receives[rank] : &c->ports[rank];
    const Message *message = message_of(c, port, rank, one->turn, &one->call);
    *has = port_read(port, message, from, place, bytes);
    if (!*has) memset(place, 0, bytes);
    return *message->producer ? kept_name(message->producer) : *has ? NULL : "memory of another rank";
}

static int is_reduced(int call) { return call == ALL_REDUCE || call == REDUCE || call == REDUCE_SCATTER; }

static void take(Awaited *one) {
    Communicator *c = one->group;
    const Call *call = &one->call;
    const int is_one = call->call == BROADCAST || call->call == RECEIVE, reduces = is_reduced(call->call);
    const size_t bytes = nc_bytes(call->count, call->type), own = (size_t)c->rank * bytes;
    const char *producer = NULL;
    char *found = calloc(1, bytes * (is_one || reduces ? 1 : (size_t)c->ranks) + 1), *part = malloc(bytes + 1);
    int has_all = 1, has;
    for (int rank = 0; rank < c->ranks; rank++) {
        if (is_one && rank != call->root) continue;
        char *place = reduces || is_one ? part : found + (size_t)rank * bytes;
        const char *maker = receive(c, one, rank, parts(c, call->call) > 1 ? own : 0, place, bytes, &has);
        if (maker && !producer) producer = maker;
        has_all &= has;
        if (is_one || (reduces && rank == 0)) memcpy(found, part, bytes);
        else if (reduces) nc_combine(found, part, call->count, call->type, call->operation);
    }
    if (call->operation == AVERAGE && reduces) nc_divide(found, call->count, call->type, c->ranks);
    em_values_arrived(&one->base, call->to, has_all || !reduces ? found : NULL, producer);
    free(found);
    free(part);
}

static void unlist(Awaited *one) {
    pthread_mutex_lock(&list_lock);
    for (Awaited **at = &first; *at; at = &(*at)->next) {
        if (*at != one) continue;
        *at = one->next;
        if (last == &one->next) last = at;
        awaited_count--;
        break;
    }
    pthread_mutex_unlock(&list_lock);
}

/* Threads may look at the same bytes: one takes them, and the others wait for it. */
static void arrive(EmAwaited *base) {
    Awaited *one = (Awaited *)base;
    pthread_mutex_lock(&one->lock);
    if (!one->has_arrived) {
        take(one);
        one->has_arrived = 1;
        unlist(one);
        note_read(one->group);
        em_let_go(base);
    }
    pthread_mutex_unlock(&one->lock);
}

static void drop(Awaited *one) {
    pthread_mutex_lock(&one->lock);
    if (!one->has_arrived) {
        em_values_arrived(&one->base, one->call.to, NULL, "a call of NCCL that did not end");
        one->has_arrived = 1;
        unlist(one);
        em_let_go(&one->base);
    }
    pthread_mutex_unlock(&one->lock);
}

static void end_awaited(EmAwaited *base) { free(base); }

/* The oldest call up to this number, of any group or of this one; held. */
static Awaited *oldest(uint64_t number, const Communicator *c) {
    pthread_mutex_lock(&list_lock);
    Awaited *found = first;
    while (found && (found->number > number || (c && found->group != c))) found = found->next;
    if (found) em_hold(&found->base);
    pthread_mutex_unlock(&list_lock);
    return found;
}

/* The oldest call of the whole group before this turn; held. */
static Awaited *oldest_before(uint64_t turn, const Communicator *c) {
    pthread_mutex_lock(&list_lock);
    Awaited *found = first;
    while (found && (found->group != c || found->call.call == RECEIVE || found->turn >= turn)) found = found->next;
    if (found) em_hold(&found->base);
    pthread_mutex_unlock(&list_lock);
    return found;
}

static void meet(uint64_t behind) {
    Awaited *one;
    while ((one = oldest(behind, NULL))) {
        arrive(&one->base);
        em_let_go(&one->base);
    }
}

/* A call whose bytes have all been written over needs nothing of the others. */
static void make_place(void) {
    while (awaited_count >= most_awaited) {
        Awaited *one = oldest(UINT64_MAX, NULL);
        if (!one) return;
        if (em_values_is_awaited(&one->base)) arrive(&one->base);
        else drop(one);
        em_let_go(&one->base);
    }
}

static void await(Communicator *c, const Call *call, uint64_t turn, size_t bytes, void *stream) {
    make_place();
    Awaited *one = calloc(1, sizeof *one);
    one->base = (EmAwaited){1, arrive, end_awaited};
    one->group = c;
    one->call = *call;
    one->turn = turn;
    pthread_mutex_init(&one->lock, NULL);
    pthread_mutex_lock(&list_lock);
    one->number = ++numbers;
    *last = one;
    last = &one->next;
    awaited_count++;
    em_values_await(call->to, bytes, &one->base);
    pthread_mutex_unlock(&list_lock);
    em_stream(stream)->behind = one->number;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------- */

/* The turn of a call of the whole group, after this rank's part of it was written. */
static uint64_t take_turn(Communicator *c, const Call *call, int has_content) {
    Port *own = &c->ports[c->rank];
    Awaited *one;
    while (c->turn >= MOST_MESSAGES / 2 && (one = oldest_before(c->turn - MOST_MESSAGES / 2, c))) {
        arrive(&one->base);
        em_let_go(&one->base);
    }
    note_read(c);
    for (int rank = 0; rank < c->ranks; rank++) {
        struct timespec soon = {0, 1000000};
        WAIT(c, rank, call->call,
             c->turn < MOST_MESSAGES || (port_find(&c->ports[rank]) &&
                                         __atomic_load_n(&c->ports[rank].channel->read, __ATOMIC_ACQUIRE) > c->turn - MOST_MESSAGES),
             nanosleep(&soon, NULL));
    }
    send_message(own, c, call, has_content, read_by_all(c));
    return c->turn++;
}

static size_t received_bytes(const Communicator *c, const Call *call) {
    size_t bytes = nc_bytes(call->count, call->type);
    return call->call == ALL_GATHER || call->call == ALL_TO_ALL ? bytes * (size_t)c->ranks : bytes;
}

void ex_call(Communicator *c, const Call *call, void *stream) {
    int is_root = call->root == c->rank, one_sends = call->call == BROADCAST, one_receives = call->call == REDUCE;
    uint64_t turn = take_turn(c, call, !one_sends || is_root);
    size_t bytes = received_bytes(c, call);
    if (one_sends && is_root) em_copy(call->to, call->from, bytes);
    if ((one_sends && is_root) || (one_receives && !is_root)) return note_read(c);
    if (is_sent(c, call)) {
        await(c, call, turn, bytes, stream);
    } else {
        em_values_unknown(call->to, bytes, gr_name(call->call));
        note_read(c);
    }
}

void ex_send(Communicator *c, const Call *call) {
    Port *port = &c->sends[call->root];
    struct timespec soon = {0, 1000000};
    if (!port->channel && !port_make(port)) return;
    uint64_t sent = c->sent[call->root];
    WAIT(c, call->root, RECEIVE,
         sent < MOST_MESSAGES || __atomic_load_n(&port->channel->read, __ATOMIC_ACQUIRE) > sent - MOST_MESSAGES,
         nanosleep(&soon, NULL));
    send_message(port, c, call, 1, __atomic_load_n(&port->channel->read, __ATOMIC_ACQUIRE));
    c->sent[call->root]++;
}

void ex_receive(Communicator *c, const Call *call, void *stream) {
    uint64_t turn = c->received[call->root]++;
    size_t bytes = nc_bytes(call->count, call->type);
    if (is_sent(c, call)) {
        await(c, call, turn, bytes, stream);
    } else {
        em_values_unknown(call->to, bytes, gr_name(call->call));
        port_find(&c->receives[call->root]);
        note_read(c);
    }
}

/* All ranks of the whole group say their colour; those of one colour are numbered by their key. */
int ex_split(Communicator *c, int colour, int key, int *rank, int *ranks) {
    int32_t own[2] = {colour, key};
    Call call = {.call = SPLIT, .from = own, .count = 2, .type = INT32};
    em_values_right(own, sizeof own);
    uint64_t turn = take_turn(c, &call, 1);
    em_values_forget(own, sizeof own);
    *rank = *ranks = 0;
    for (int other = 0; other < c->ranks && colour >= 0; other++) {
        int32_t theirs[2];
        if (!port_read(&c->ports[other], message_of(c, &c->ports[other], other, turn, &call), 0, theirs, sizeof theirs)) continue;
        if (theirs[0] != colour) continue;
        ++*ranks;
        *rank += theirs[1] < key || (theirs[1] == key && other < c->rank);
    }
    note_read(c);
    return (int)turn;
}

/* A rank that leaves waits for calls whose other ranks have written already; nobody is waited for. */
static int is_complete(Awaited *one) {
    Communicator *c = one->group;
    for (int rank = 0; rank < c->ranks; rank++) {
        if ((one->call.call == BROADCAST || one->call.call == RECEIVE) && rank != one->call.root) continue;
        Port *port = one->call.call == RECEIVE ? &c->receives[rank] : &c->ports[rank];
        if (!port_find(port) || __atomic_load_n(&port->channel->written, __ATOMIC_ACQUIRE) <= one->turn) return 0;
    }
    return 1;
}

void ex_leave(Communicator *c, int waits) {
    Awaited *one;
    if (!c->ports) return;
    while ((one = oldest(UINT64_MAX, c))) {
        if (waits && is_complete(one)) arrive(&one->base);
        else drop(one);
        em_let_go(&one->base);
    }
    note_read(c);
    c->is_exchanged = 0;
    if (c->ports[c->rank].channel) __atomic_store_n(&c->ports[c->rank].channel->closed, 1, __ATOMIC_RELEASE);
    for (int rank = 0; rank < c->ranks; rank++) {
        port_close(&c->ports[rank]);
        port_close(&c->sends[rank]);
        port_close(&c->receives[rank]);
    }
}
