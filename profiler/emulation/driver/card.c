/* The numbers of the emulated cards, from the environment (profiler/emulation/card/cards.py writes them). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

static EmCard card;
static int present = 1;
static int visible[EM_MAX_CARDS], visible_count = 0;

const char *em_option(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The value of `key` in "key=value;key=value"; 1 if it is there. */
static int field(const char *text, const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    for (const char *at = text; at && *at; at = strchr(at, ';') ? strchr(at, ';') + 1 : NULL) {
        if (strncmp(at, key, length) || at[length] != '=') continue;
        const char *from = at + length + 1;
        size_t count = strcspn(from, ";");
        if (count >= size) count = size - 1;
        memcpy(value, from, count);
        value[count] = 0;
        return 1;
    }
    return 0;
}

static uint64_t number(const char *text, const char *key) {
    char value[32];
    if (field(text, key, value, sizeof value)) return strtoull(value, NULL, 10);
    fprintf(stderr, "EMULATED_CARD: %s is missing.\n", key);
    exit(2);
}

static void read_card(const char *text) {
    if (!field(text, "name", card.name, sizeof card.name)) strcpy(card.name, "emulated card");
    card.memory_bytes = number(text, "memory_bytes");
    card.nvml_memory_bytes = number(text, "nvml_memory_bytes");
    card.context_bytes = number(text, "context_bytes");
    card.major = (int)number(text, "capability_major");
    card.minor = (int)number(text, "capability_minor");
    card.multiprocessors = (int)number(text, "multiprocessors");
    card.shared_per_multiprocessor = (int)number(text, "shared_per_multiprocessor");
    card.shared_per_block = (int)number(text, "shared_per_block");
    card.l2_cache_bytes = (int)number(text, "l2_cache_bytes");
    card.threads_per_multiprocessor = (int)number(text, "threads_per_multiprocessor");
    card.bus_bits = (int)number(text, "bus_bits");
    card.ecc = (int)number(text, "ecc");
}

/* The card that a word of CUDA_VISIBLE_DEVICES names: an index, or the beginning of a UUID. -1: none. */
static int named(const char *word) {
    if (*word >= '0' && *word <= '9') {
        int index = atoi(word);
        return index < present ? index : -1;
    }
    for (int physical = 0; *word && physical < present; physical++) {
        char uuid[48];
        em_uuid_text(physical, uuid, sizeof uuid);
        if (!strncmp(uuid, word, strlen(word))) return physical;
    }
    return -1;
}

/* As CUDA reads it: up to the first word that names no card, and when a card is first used: a process may have been forked
 * since this library was loaded, and have cards of its own. */
static void read_visible(void) {
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) {
        for (int physical = 0; physical < present; physical++) visible[visible_count++] = physical;
        return;
    }
    char words[1024], *rest = words;
    snprintf(words, sizeof words, "%s", wanted);
    for (char *word = strsep(&rest, ","); word && visible_count < present; word = strsep(&rest, ",")) {
        while (*word == ' ') word++;
        int physical = named(word);
        if (physical < 0) break;
        visible[visible_count++] = physical;
    }
}

__attribute__((constructor)) static void read_environment(void) {
    const char *text = em_option("EMULATED_CARD"), *count = em_option("EMULATED_CARDS");
    if (!text) {
        present = 0;
        return;
    }
    read_card(text);
    if (count) present = atoi(count);
    if (present > EM_MAX_CARDS) present = EM_MAX_CARDS;
}

static void need_visible(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_visible);
}

const EmCard *em_card(void) { return &card; }

/* Give every card more memory than any program takes. Before the first use of a card. Not more than 4 TiB: with expandable
 * segments torch reserves addresses for more than a whole card, several times. */
void em_lift_limit(void) { card.memory_bytes = card.nvml_memory_bytes = (uint64_t)1 << 42; }
int em_count(void) {
    need_visible();
    return visible_count;
}
int em_count_present(void) { return present; }
int em_physical(int device) {
    need_visible();
    return device >= 0 && device < visible_count ? visible[device] : 0;
}

/* Recognisable, and different for each card. */
void em_uuid(int physical, unsigned char bytes[16]) {
    for (int i = 0; i < 16; i++) bytes[i] = (unsigned char)(i + 1);
    bytes[15] = (unsigned char)(16 + physical);
}

void em_uuid_text(int physical, char *text, unsigned size) {
    unsigned char b[16];
    em_uuid(physical, b);
    snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* Numbers of the interface. An attribute that is not here is a yes-or-no question, and answered with yes. */
int em_attribute(int attribute, int device) {
    switch (attribute) {
        case 1: case 2: case 3: return 1024;           /* threads per block; block's x, y */
        case 4: return 64;                             /* block's z */
        case 5: return 2147483647;                     /* grid's x */
        case 6: case 7: return 65535;                  /* grid's y, z */
        case 8: return 49152;                          /* shared memory per block, without asking for more */
        case 10: return 32;                            /* warp */
        case 12: case 82: return 65536;                /* registers per block, per multiprocessor */
        case 16: return card.multiprocessors;
        case 33: return em_physical(device) + 1;       /* PCI bus */
        case 34: case 50: return 0;                    /* PCI device, domain */
        case 37: return card.bus_bits;
        case 38: return card.l2_cache_bytes;
        case 39: return card.threads_per_multiprocessor;
        case 75: return card.major;
        case 76: return card.minor;
        case 81: return card.shared_per_multiprocessor;
        case 97: return card.shared_per_block;
        case 106: return 32;                           /* blocks per multiprocessor */
        case 132: return 0;                            /* multicast */
        default: return 1;
    }
}
