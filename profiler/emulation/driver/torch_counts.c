/* torch's counters of its allocator, at each change and without asking it: its peaks stay those of the program.
 *
 * c10 has a function that the allocator calls with the bytes that are allocated and reserved. This library is loaded before
 * torch, so that the one here is found first; it passes on what it hears. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "emulated.h"

#define NAME "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
enum { CUDA = 1 }; /* c10::DeviceType */

typedef void Report(void *address, int64_t bytes, size_t allocated, size_t reserved, uint16_t device);

/* A c10::Device is two bytes: the kind of device, and its number. */
void em_report(void *address, int64_t bytes, size_t allocated, size_t reserved, uint16_t device) __asm__(NAME);

void em_report(void *address, int64_t bytes, size_t allocated, size_t reserved, uint16_t device) {
    static Report *real;
    if (!real) {
        void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
        if (library) real = (Report *)dlsym(library, NAME);
    }
    if ((device & 255) == CUDA) em_counts((int8_t)(device >> 8), allocated, reserved);
    if (real && real != em_report) real(address, bytes, allocated, reserved, device);
}
