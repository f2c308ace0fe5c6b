/* What a reader of the figures has to know about this process: values that were not right, assumptions, entry points
 * without an answer. Each is noted once, with its count, and appended to a file if there is one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulated.h"

typedef struct {
    char kind[16];
    char name[160];
    long times;
} Mark;

#define MOST_MARKS 512
static Mark marks[MOST_MARKS];
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void append_to_file(const Mark *mark) {
    const char *path = em_option("EMULATED_MARKS");
    char line[256];
    if (!path) return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "%ld\t%s\t%s\n", (long)getpid(), mark->kind, mark->name);
    if (write(file, line, (size_t)length) < 0) perror(path);
    close(file);
}

void em_mark(const char *kind, const char *name) {
    pthread_mutex_lock(&lock);
    int index = 0;
    while (index < count && (strcmp(marks[index].name, name) || strcmp(marks[index].kind, kind))) index++;
    if (index == count && count < MOST_MARKS) {
        snprintf(marks[index].kind, sizeof marks[index].kind, "%s", kind);
        snprintf(marks[index].name, sizeof marks[index].name, "%s", name);
        marks[index].times = 0;
        count++;
        append_to_file(&marks[index]);
    }
    if (index < count) marks[index].times++;
    pthread_mutex_unlock(&lock);
}

int em_marks(char *text, int size) {
    int length = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        char line[256];
        int added = snprintf(line, sizeof line, "%s\t%s\t%ld\n", marks[i].kind, marks[i].name, marks[i].times);
        if (length + added < size) memcpy(text + length, line, (size_t)added + 1);
        length += added;
    }
    pthread_mutex_unlock(&lock);
    return length;
}

void em_forget_marks(void) {
    pthread_mutex_lock(&lock);
    count = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- entry points without an answer ---------------------------------------------------------------------------------------- */

int em_unseen(const char *library, const char *name) {
    char text[160];
    snprintf(text, sizeof text, "%s:%s", library, name);
    em_mark("entry point", text);
    if (em_option("EMULATED_STRICT")) {
        char sentence[320];
        snprintf(sentence, sizeof sentence,
                 "The emulated driver has no answer for %s of %s: this program cannot be emulated; strict=false goes on and "
                 "marks the record.", name, library);
        em_said(sentence);
        fprintf(stderr, "%s\n", sentence);
        fflush(NULL);
        _exit(2);
    }
    return EM_OK;
}

/* Machine code of x86-64 that calls em_unseen(library, name): the caller may ask for any name at run time. */
void *em_unseen_function(const char *library, const char *name) {
    static unsigned char *page;
    static size_t used = 4096;
    unsigned char code[] = {
        0x48, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0, /* mov rdi, library */
        0x48, 0xbe, 0, 0, 0, 0, 0, 0, 0, 0, /* mov rsi, name */
        0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, /* mov rax, em_unseen */
        0xff, 0xe0,                         /* jmp rax */
    };
    const char *kept[2] = {strdup(library), strdup(name)};
    int (*target)(const char *, const char *) = em_unseen;
    memcpy(code + 2, &kept[0], 8);
    memcpy(code + 12, &kept[1], 8);
    memcpy(code + 22, &target, 8);
    pthread_mutex_lock(&lock);
    if (used + sizeof code > 4096) {
        page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        used = 0;
    }
    void *function = page == MAP_FAILED ? NULL : memcpy(page + used, code, sizeof code);
    used += sizeof code;
    pthread_mutex_unlock(&lock);
    return function;
}
