/* Groups of ranks that are processes: their files, and how the wait for a rank ends that sends nothing more. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

static double most_s = 600; /* a living rank is waited for so long, as torch does by default */

__attribute__((constructor)) static void start(void) {
    const char *option = em_option("EMULATED_WAIT_S");
    if (option) most_s = atof(option);
}

static const char *const names[] = {"ncclAllReduce",  "ncclReduce",   "ncclReduceScatter", "ncclBroadcast", "ncclAllGather",
                                    "ncclAlltoAll",   "ncclCommSplit", "ncclSend",          "ncclRecv"};

const char *gr_name(int call) { return names[call]; }
double gr_most_s(void) { return most_s; }

void gr_join(Communicator *c) {
    size_t ranks = (size_t)c->ranks;
    c->ports = calloc(ranks, sizeof(Port));
    c->sends = calloc(ranks, sizeof(Port));
    c->receives = calloc(ranks, sizeof(Port));
    c->sent = calloc(ranks, sizeof(uint64_t));
    c->received = calloc(ranks, sizeof(uint64_t));
    for (int rank = 0; rank < c->ranks; rank++) {
        snprintf(c->ports[rank].name, sizeof c->ports->name, "%s.%d", c->name, rank);
        snprintf(c->sends[rank].name, sizeof c->ports->name, "%s.%d-%d", c->name, c->rank, rank);
        snprintf(c->receives[rank].name, sizeof c->ports->name, "%s.%d-%d", c->name, rank, c->rank);
    }
    c->is_exchanged = port_make(&c->ports[c->rank]);
}

double gr_now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

void gr_end_process(const char *sentence) {
    em_said(sentence);
    fprintf(stderr, "%s\n", sentence);
    fflush(NULL);
    _exit(1);
}

/* Why a rank can send nothing more; NULL if it can. */
const char *gr_reason(Communicator *c, int rank) {
    const Port *port = &c->ports[rank];
    if (!port_find(&c->ports[rank])) {
        const char *ranks = em_option("WORLD_SIZE");
        return ranks && atoi(ranks) == c->ranks && em_rank_has_ended(rank, c->ranks) ? "has ended" : NULL;
    }
    if (em_born((long)port->channel->pid) != port->channel->born) return "has ended";
    return __atomic_load_n(&port->channel->closed, __ATOMIC_ACQUIRE) ? "has left the group" : NULL;
}

void gr_give_up(Communicator *c, int rank, int call, const char *reason) {
    char sentence[320], process[64] = "";
    if (c->ports[rank].channel) snprintf(process, sizeof process, " (process %ld)", (long)c->ports[rank].channel->pid);
    if (reason)
        snprintf(sentence, sizeof sentence, "Rank %d of %d%s %s without %s, for which rank %d waits.", rank, c->ranks, process,
                 reason, gr_name(call), c->rank);
    else
        snprintf(sentence, sizeof sentence, "Rank %d of %d%s has not called %s within %g s, for which rank %d waits.", rank,
                 c->ranks, process, gr_name(call), most_s, c->rank);
    gr_end_process(sentence);
}
