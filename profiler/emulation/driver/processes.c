/* What the processes of a job hold of each card, in one file that all of them have mapped: a card is one state.
 *
 * Each process has an entry, which it writes as it goes: what is there survives its end, whatever ends it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "emulated.h"

#define MOST_ENTRIES 2048
#define TEXT 400
#define MOST_PHASES 16

typedef struct {
    int64_t pid, parent;
    uint64_t born;    /* ticks since the start of the machine: the kernel uses numbers of processes again */
    int64_t ended;    /* 1: it has left by itself */
    int64_t rank, ranks; /* of the launcher's environment, or of torch's whole group; -1: none */
    uint64_t did;     /* EM_TRAINS and others */
    uint64_t refused; /* bytes of the last allocation that failed */
    int64_t refused_on;
    int64_t said_ms; /* when it said its last sentence, on a clock that all processes have */
    char command[TEXT], said[TEXT];
    uint64_t held[EM_MAX_CARDS], most[EM_MAX_CARDS];
    uint64_t allocated[MOST_PHASES], reserved[MOST_PHASES]; /* torch's peaks, on the card where each is highest */
    int64_t phase;
    uint64_t at_most[EM_MAX_CARDS]; /* held when all processes held the most of the card, and in which phase */
    int64_t phase_at_most[EM_MAX_CARDS];
} Entry;

typedef struct {
    char layout[768]; /* where what is, for readers in other languages */
    pthread_mutex_t lock;
    int64_t closed; /* 1: removed by the last process */
    int64_t count;
    uint64_t most[EM_MAX_CARDS]; /* of all processes together */
    Entry entries[MOST_ENTRIES];
} Table;

static char folder[4000];
static int shares;    /* whether memory of other processes counts against the card */
static int phase, is_kept; /* whether somebody reads the file after the last process has ended */
static Table *table;
static int has_none; /* the folder cannot be written */
static Entry *own;
static pid_t owner; /* the process whose entry `own` is; a forked one has none yet */

__attribute__((constructor)) static void start(void) {
    const char *option = em_option("EMULATED_PROCESSES");
    shares = em_option("EMULATED_SHARED") != NULL;
    is_kept = em_option("EMULATED_KEPT") != NULL;
    if (option) snprintf(folder, sizeof folder, "%s", option);
}

/* ---- the file ---------------------------------------------------------------------------------------------------------------- */

static void path_of(char *path, size_t size, const char *name) { snprintf(path, size, "%s/%s", folder, name); }

int em_folder(char *path, size_t size, const char *name) {
    if (*folder) path_of(path, size, name);
    return *folder != 0;
}

static Table *mapped(int file) {
    void *found = mmap(NULL, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* A whole file gets its name at once: nobody sees a part of it. */
static void make_table(const char *path) {
    char aside[sizeof folder + 128];
    snprintf(aside, sizeof aside, "%s.%ld", path, (long)getpid());
    int file = open(aside, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    Table *made = file >= 0 && !ftruncate(file, sizeof(Table)) ? mapped(file) : NULL;
    if (made) {
        pthread_mutexattr_t kind;
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&made->lock, &kind);
        snprintf(made->layout, sizeof made->layout,
                 "cards=%d;text=%d;count=%zu;card_most=%zu;first=%zu;each=%zu;pid=%zu;parent=%zu;born=%zu;ended=%zu;rank=%zu;"
                 "ranks=%zu;did=%zu;refused=%zu;refused_on=%zu;said_ms=%zu;command=%zu;said=%zu;held=%zu;most=%zu;phases=%d;"
                 "allocated=%zu;reserved=%zu;at_most=%zu;phase_at_most=%zu",
                 em_count_present(), TEXT, offsetof(Table, count), offsetof(Table, most), offsetof(Table, entries), sizeof(Entry),
                 offsetof(Entry, pid), offsetof(Entry, parent), offsetof(Entry, born), offsetof(Entry, ended),
                 offsetof(Entry, rank), offsetof(Entry, ranks), offsetof(Entry, did), offsetof(Entry, refused),
                 offsetof(Entry, refused_on), offsetof(Entry, said_ms), offsetof(Entry, command), offsetof(Entry, said), offsetof(Entry, held),
                 offsetof(Entry, most), MOST_PHASES, offsetof(Entry, allocated), offsetof(Entry, reserved),
                 offsetof(Entry, at_most), offsetof(Entry, phase_at_most));
        if (link(aside, path) && errno != EEXIST) perror(path);
        munmap(made, sizeof(Table));
    }
    if (file >= 0) close(file);
    unlink(aside);
}

static void lock_table(Table *of) {
    if (pthread_mutex_lock(&of->lock) == EOWNERDEAD) pthread_mutex_consistent(&of->lock);
}

/* The table, or NULL if there is no place for one. */
static Table *open_table(void) {
    char path[sizeof folder + 64];
    if (table || !*folder) return table;
    path_of(path, sizeof path, "cards");
    for (int tries = 0; tries < 3 && !table && !has_none; tries++) {
        mkdir(folder, 0700);
        int file = open(path, O_RDWR | O_CLOEXEC);
        if (file < 0) {
            make_table(path);
            continue;
        }
        struct stat found;
        Table *opened = !fstat(file, &found) && (size_t)found.st_size == sizeof(Table) ? mapped(file) : NULL;
        close(file);
        if (opened && opened->closed) munmap(opened, sizeof(Table));
        else table = opened;
    }
    has_none = !table;
    return table;
}

void em_lock_cards(void) {
    if (open_table()) lock_table(table);
}
void em_unlock_cards(void) {
    if (table) pthread_mutex_unlock(&table->lock);
}

/* ---- entries ----------------------------------------------------------------------------------------------------------------- */

/* When a process was born; 0 if there is none, or if it has ended and only its exit code is left. */
uint64_t em_born(long pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    char *at = strrchr(text, ')'), state = 0;
    unsigned long long born = 0;
    if (!at) return 0;
    sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state, &born);
    return state == 'Z' || state == 'X' ? 0 : born;
}

static int lives(const Entry *entry) { return entry->pid && !entry->ended && em_born((long)entry->pid) == entry->born; }

/* Its words now: a process may give itself a title later. */
static void read_command(Entry *entry) {
    char text[TEXT];
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (length <= 0) return;
    while (length && !text[length - 1]) length--;
    for (ssize_t i = 0; i < length; i++)
        if (!text[i] || text[i] == '\n' || text[i] == '\t') text[i] = ' ';
    text[length] = 0;
    strcpy(entry->command, text);
}

/* The caller has locked the table. An entry of this process from before an exec is its own; one that nobody needs is taken
 * again when the table is full. */
static Entry *new_entry(void) {
    uint64_t born = em_born(getpid());
    Entry *found = NULL;
    for (int64_t i = 0; i < table->count && !found; i++) {
        Entry *each = &table->entries[i];
        if (each->pid == getpid() && each->born == born) found = each;
    }
    if (!found && table->count < MOST_ENTRIES) found = &table->entries[table->count++];
    for (int64_t i = 0; i < table->count && !found; i++) {
        Entry *each = &table->entries[i];
        uint64_t most = 0;
        for (int card = 0; card < EM_MAX_CARDS; card++) most |= each->most[card];
        if (!most && !*each->said && !lives(each)) found = each;
    }
    if (!found) return NULL;
    memset(found, 0, sizeof *found);
    found->pid = getpid();
    found->parent = getppid();
    found->born = born;
    found->rank = found->ranks = found->refused_on = -1;
    const char *rank = em_option("RANK"), *ranks = em_option("WORLD_SIZE");
    if (rank && ranks) {
        found->rank = atoi(rank);
        found->ranks = atoi(ranks);
    }
    read_command(found);
    return found;
}

/* This process's entry; NULL if there is no table, or no place in it. */
static Entry *entry_of_this(void) {
    if (owner == getpid()) return own;
    if (!open_table()) return NULL;
    lock_table(table);
    if (owner != getpid()) { /* else another thread has made it */
        own = new_entry();
        if (own) own->phase = phase;
        owner = getpid();
    }
    pthread_mutex_unlock(&table->lock);
    return own;
}

void em_join(void) { entry_of_this(); }

int em_rank_has_ended(int rank, int ranks) {
    int found = 0;
    if (!open_table()) return 0;
    for (int64_t i = 0; i < table->count; i++) {
        const Entry *each = &table->entries[i];
        if (each->rank != rank || each->ranks != ranks) continue;
        if (lives(each)) return 0;
        found = 1;
    }
    return found;
}

/* The caller has locked the table, so that the changes of all processes are in order. */
static void note_change(const Entry *entry, int card) {
    em_course(entry - table->entries, card, (int)entry->phase, entry->held[card], entry == own);
}

/* What an entry holds of a card. The memory of a process that has ended has returned to the cards. */
static uint64_t held_now(Entry *entry, int card) {
    if (!entry->held[card] || entry == own || lives(entry)) return entry->held[card];
    for (int each = 0; each < EM_MAX_CARDS; each++) {
        uint64_t returned = entry->held[each];
        entry->held[each] = 0;
        if (returned) note_change(entry, each);
    }
    return 0;
}

static void note_most(int card) {
    uint64_t total = 0;
    for (int64_t i = 0; i < table->count; i++) total += held_now(&table->entries[i], card);
    if (total <= table->most[card]) return;
    table->most[card] = total;
    for (Entry *each = table->entries; each < table->entries + table->count; each++) {
        each->at_most[card] = each->held[card];
        each->phase_at_most[card] = each->phase;
    }
}

static void note_all_counts(void);

void em_publish(const uint64_t *held) {
    if (owner != getpid() || !own) return;
    int grows = 0;
    for (int card = 0; card < em_count_present(); card++) {
        int more = held[card] > own->held[card];
        own->held[card] = held[card];
        if (more) note_most(card);
        note_change(own, card);
        if (held[card] <= own->most[card]) continue;
        own->most[card] = held[card];
        grows = 1;
    }
    if (grows) read_command(own);
    note_all_counts(); /* an engine that wakes up has memory again, of which torch reports nothing */
}

/* ---- torch's counters, by phase ------------------------------------------------------------------------------------------------- */

static struct {
    uint64_t allocated, reserved;
} counted[EM_MAX_CARDS]; /* as torch has reported them last */

static void forget_counts(void) {
    memset(counted, 0, sizeof counted);
    phase = 0;
}
__attribute__((constructor)) static void forget_counts_after_fork(void) { pthread_atfork(NULL, NULL, forget_counts); }

/* The counters cannot be larger than what the card has given: torch does not report that it has emptied its cache, and does not
 * know that an engine which sleeps has returned the memory behind its tensors. */
static void note_counts(int device) {
    if (owner != getpid() || !own || !counted[device].reserved) return;
    uint64_t held = own->held[em_physical(device)], context = em_card()->context_bytes;
    uint64_t taken = held > context ? held - context : 0;
    uint64_t allocated = counted[device].allocated, reserved = counted[device].reserved;
    if (allocated > taken) allocated = taken;
    if (reserved > taken) reserved = taken;
    if (allocated > own->allocated[phase]) own->allocated[phase] = allocated;
    if (reserved > own->reserved[phase]) own->reserved[phase] = reserved;
}

static void note_all_counts(void) {
    for (int device = 0; device < em_count(); device++) note_counts(device);
}

void em_counts(int device, uint64_t allocated, uint64_t reserved) {
    if (device < 0 || device >= EM_MAX_CARDS) return;
    counted[device].allocated = allocated;
    counted[device].reserved = reserved;
    note_counts(device);
}

/* A phase begins with what the last one holds. */
void em_phase(int next) {
    if (next < 0 || next >= MOST_PHASES) return;
    phase = next;
    note_all_counts();
    if (owner != getpid() || !own || own->phase == next) return;
    lock_table(table);
    own->phase = next;
    for (int card = 0; card < em_count_present(); card++) note_change(own, card);
    pthread_mutex_unlock(&table->lock);
}

void em_refused(int physical, uint64_t bytes) {
    if (owner != getpid() || !own) return;
    own->refused = bytes;
    own->refused_on = physical;
}

void em_did(unsigned what) {
    static __thread unsigned noted;
    static __thread pid_t noted_by; /* a forked process has done nothing yet */
    if (noted_by != getpid()) noted = 0;
    noted_by = getpid();
    if ((noted & what) == what) return;
    Entry *entry = entry_of_this();
    noted |= what;
    if (entry) __atomic_or_fetch(&entry->did, what, __ATOMIC_RELAXED);
}

void em_rank(int rank, int ranks) {
    Entry *entry = entry_of_this();
    if (!entry || ranks < entry->ranks) return;
    entry->rank = rank;
    entry->ranks = ranks;
}

void em_said(const char *text) {
    Entry *entry = entry_of_this();
    struct timespec now;
    if (!entry) return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    entry->said_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    snprintf(entry->said, sizeof entry->said, "%s", text);
}

__attribute__((destructor)) static void end(void) {
    char path[sizeof folder + 64];
    if (owner != getpid() || !own) return;
    lock_table(table);
    memset(own->held, 0, sizeof own->held);
    for (int card = 0; card < em_count_present(); card++) note_change(own, card);
    own->ended = 1;
    int last = !is_kept;
    for (int64_t i = 0; i < table->count && last; i++) last = !lives(&table->entries[i]);
    if (last) {
        table->closed = 1;
        path_of(path, sizeof path, "cards");
        unlink(path);
        rmdir(folder);
    }
    pthread_mutex_unlock(&table->lock);
}

int em_processes(int physical, unsigned *pids, uint64_t *bytes, int most) {
    int count = 0;
    if (!open_table()) return 0;
    for (int64_t i = 0; i < table->count; i++) {
        Entry *entry = &table->entries[i];
        uint64_t held = held_now(entry, physical);
        if (!held) continue;
        if (count == most) break;
        pids[count] = (unsigned)entry->pid;
        bytes[count++] = held;
    }
    return count;
}

uint64_t em_held_by_others(int physical) {
    unsigned pids[256];
    uint64_t bytes[256], total = 0;
    if (!shares) return 0;
    int count = em_processes(physical, pids, bytes, 256);
    for (int i = 0; i < count; i++)
        if (pids[i] != (unsigned)getpid()) total += bytes[i];
    return total;
}
