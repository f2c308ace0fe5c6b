/* The course of a job: what each process holds of a card in which phase, at each change that a reader of a figure sees.
 *
 * One file for all processes, in the order of the changes: whoever calls has locked the cards. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "emulated.h"

enum { STEPS = 256 }; /* of a card: smaller changes are left out until they add up to one */

typedef struct {
    int64_t entry, card, phase; /* profiler/emulation/card.py reads these */
    uint64_t held;
} Change;

static Change last[EM_MAX_CARDS]; /* of this process */

static void forget(void) { memset(last, 0, sizeof last); }
__attribute__((constructor)) static void forget_after_fork(void) { pthread_atfork(NULL, NULL, forget); }

static void append(const Change *change) {
    char path[4096];
    if (!em_folder(path, sizeof path, "course")) return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (write(file, change, sizeof *change) < 0) perror(path);
    close(file);
}

/* Nothing is left out of what another process has returned by its end. */
void em_course(int64_t entry, int card, int phase, uint64_t held, int is_own) {
    Change now = {entry, card, phase, held}, *before = &last[card];
    if (!em_option("EMULATED_KEPT")) return;
    if (is_own) {
        uint64_t moved = held > before->held ? held - before->held : before->held - held;
        int is_end = before->held && !held, is_next = held && phase != before->phase;
        if (moved < em_card()->memory_bytes / STEPS && !is_end && !is_next) return;
        *before = now;
    }
    append(&now);
}
