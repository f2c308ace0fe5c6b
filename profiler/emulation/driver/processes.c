/* What the living processes of this machine hold, so that NVML can list them: one small file per process in a folder.
 *
 * A file has one number per card of the machine. Files of ended processes are removed by whoever reads next. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emulated.h"

static char folder[256];
static int shares;    /* whether memory of other processes counts against the card */
static pid_t published; /* the process whose file this is; a forked one has none yet */

__attribute__((constructor)) static void start(void) {
    const char *option = em_option("EMULATED_PROCESSES");
    shares = em_option("EMULATED_SHARED") != NULL;
    if (option) snprintf(folder, sizeof folder, "%s", option);
}

static void path_of(char *path, size_t size, long pid) { snprintf(path, size, "%s/%ld", folder, pid); }

void em_publish(const uint64_t *held) {
    char path[300];
    if (!*folder) return;
    if (published != getpid()) mkdir(folder, 0700);
    path_of(path, sizeof path, getpid());
    FILE *file = fopen(path, "w");
    if (!file) return;
    for (int card = 0; card < em_count_present(); card++) fprintf(file, "%llu\n", (unsigned long long)held[card]);
    fclose(file);
    published = getpid();
}

__attribute__((destructor)) static void end(void) {
    char path[300];
    if (published != getpid()) return;
    path_of(path, sizeof path, getpid());
    unlink(path);
    rmdir(folder); /* succeeds for the last one */
}

static uint64_t held_by(const char *path, int physical) {
    FILE *file = fopen(path, "r");
    unsigned long long bytes = 0;
    if (!file) return 0;
    for (int card = 0; card <= physical; card++)
        if (fscanf(file, "%llu", &bytes) != 1) bytes = 0;
    fclose(file);
    return bytes;
}

int em_processes(int physical, unsigned *pids, uint64_t *bytes, int most) {
    int count = 0;
    DIR *files = *folder ? opendir(folder) : NULL;
    if (!files) return 0;
    for (struct dirent *file = readdir(files); file; file = readdir(files)) {
        char path[300];
        int pid = atoi(file->d_name);
        if (pid <= 0) continue;
        path_of(path, sizeof path, pid);
        if (kill(pid, 0) && errno == ESRCH) {
            unlink(path);
            continue;
        }
        uint64_t held = held_by(path, physical);
        if (held && count < most) {
            pids[count] = (unsigned)pid;
            bytes[count++] = held;
        }
    }
    closedir(files);
    return count;
}

uint64_t em_held_by_others(int physical) {
    unsigned pids[64];
    uint64_t bytes[64], total = 0;
    if (!shares) return 0;
    int count = em_processes(physical, pids, bytes, 64);
    for (int i = 0; i < count; i++)
        if (pids[i] != (unsigned)getpid()) total += bytes[i];
    return total;
}
