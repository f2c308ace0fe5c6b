/* Messages of one process, in a file that others have mapped: a ring of messages, and their content behind it.
 *
 * A message that was written stays readable after its process has ended. Space of what nobody needs is given back. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

static const uint64_t worth_releasing = (uint64_t)8 << 20;

static uint64_t first_content(void) { return (sizeof(Channel) + 4095) & ~(uint64_t)4095; }

static int map(Port *port, int file) {
    void *found = mmap(NULL, sizeof(Channel), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED) return 0;
    port->file = file;
    port->end = port->released = first_content();
    __atomic_store_n(&port->channel, found, __ATOMIC_RELEASE);
    return 1;
}

/* A whole file gets its name at once. */
int port_make(Port *port) {
    char path[4200], aside[4300];
    if (!em_folder(path, sizeof path, port->name)) return 0;
    snprintf(aside, sizeof aside, "%s.%ld", path, (long)getpid());
    int file = open(aside, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return 0;
    if (ftruncate(file, (off_t)first_content()) || !map(port, file)) {
        close(file);
        unlink(aside);
        return 0;
    }
    port->channel->pid = getpid();
    port->channel->born = em_born(getpid());
    return !rename(aside, path);
}

int port_find(Port *port) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char path[4200];
    if (__atomic_load_n(&port->channel, __ATOMIC_ACQUIRE)) return 1;
    if (!em_folder(path, sizeof path, port->name)) return 0;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return 0;
    pthread_mutex_lock(&lock);
    int is_open = !port->channel && map(port, file);
    pthread_mutex_unlock(&lock);
    if (!is_open) close(file);
    return port->channel != NULL;
}

void port_close(Port *port) {
    if (!port->channel) return;
    munmap(port->channel, sizeof(Channel));
    close(port->file);
    port->channel = NULL;
}

const Message *port_message(const Port *port, uint64_t number) {
    return &port->channel->messages[number % MOST_MESSAGES];
}

int port_read(const Port *port, const Message *message, uint64_t from, void *content, size_t bytes) {
    if (from + bytes > message->bytes) return 0;
    return pread(port->file, content, bytes, (off_t)(message->at + from)) == (ssize_t)bytes;
}

static void release(Port *port, uint64_t needed) {
    const uint64_t up_to = needed < port->channel->written ? port_message(port, needed)->at : port->end;
    if (up_to < port->released + worth_releasing) return;
    fallocate(port->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)port->released,
              (off_t)(up_to - port->released));
    port->released = up_to & ~(uint64_t)4095;
}

void port_write(Port *port, Message *message, const void *content, uint64_t needed) {
    Channel *channel = port->channel;
    release(port, needed);
    message->at = port->end;
    if (message->bytes && pwrite(port->file, content, message->bytes, (off_t)port->end) != (ssize_t)message->bytes)
        message->bytes = 0; /* no space: the others read that it has no content */
    port->end += message->bytes;
    channel->messages[channel->written % MOST_MESSAGES] = *message;
    __atomic_add_fetch(&channel->written, 1, __ATOMIC_RELEASE);
    __atomic_add_fetch(&channel->bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &channel->bell, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

void port_wait(const Port *port, uint64_t number, unsigned ms) {
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    if (!port->channel) {
        struct timespec soon = {0, 2000000};
        nanosleep(&soon, NULL);
        return;
    }
    uint32_t bell = __atomic_load_n(&port->channel->bell, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&port->channel->written, __ATOMIC_ACQUIRE) > number) return;
    syscall(SYS_futex, &port->channel->bell, FUTEX_WAIT, bell, &time, NULL, 0);
}
