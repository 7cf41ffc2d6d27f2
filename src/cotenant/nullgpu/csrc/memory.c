/* Memory of the null GPU: addresses in an arena that nothing is mapped to, and a count of the bytes taken.

   A process that reads or writes such an address ends by SIGSEGV, which is right: there is nothing to read. */
#define _GNU_SOURCE
#include "null_gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB ((size_t)1 << 20)
#ifndef ARENA_BYTES
#define ARENA_BYTES ((size_t)1 << 43)
#endif

struct block {
    char *begin;
    size_t bytes, committed;
    int is_outside;
    struct block *next; /* by descending addresses */
};

struct pinned {
    char *begin;
    size_t bytes;
    int is_managed;
    struct pinned *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char *arena_end;
static struct block *blocks;
static struct pinned *pins;
static size_t managed, managed_peak;
static size_t taken;
static struct {
    size_t bytes, peak_bytes, largest;
    const char *file;
} outside;

static size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static size_t shown(void) {
    const struct null_gpu *g = null_gpu();
    return g->total_bytes > g->context_bytes ? g->total_bytes - g->context_bytes : 0;
}

static size_t capacity(void) { return null_gpu()->limit_bytes ? null_gpu()->limit_bytes : shown(); }

static void map_arena(void) {
    void *found = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) {
        perror("null GPU: no 8 TiB of addresses; is `ulimit -v` set?");
        abort();
    }
    arena_end = (char *)(((uintptr_t)found + ARENA_BYTES) / (2 * MIB) * (2 * MIB));
}

static char *below(char *end, size_t bytes, size_t alignment) {
    return (char *)((uintptr_t)(end - bytes) / alignment * alignment);
}

/* The highest gap that is large enough. Nothing documents how the driver chooses addresses, and their order breaks ties
   between free blocks of the caching allocator: they descend here as in the replays, so that a difference between
   both has another cause. Called with the mutex held. */
static struct block *place(size_t bytes, size_t alignment, size_t committed) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, map_arena);
    char *end = arena_end;
    struct block **link = &blocks;
    for (; *link; link = &(*link)->next) {
        if (below(end, bytes, alignment) >= (*link)->begin + (*link)->bytes) break;
        end = (*link)->begin;
    }
    struct block *made = malloc(sizeof *made);
    if (!made) return NULL;
    *made = (struct block){below(end, bytes, alignment), bytes, committed, 0, *link};
    *link = made;
    return made;
}

/* Called with the mutex held. */
static void count_outside(size_t bytes, const void *code) {
    Dl_info found;
    outside.bytes += bytes;
    if (outside.bytes > outside.peak_bytes) outside.peak_bytes = outside.bytes;
    if (!code || bytes <= outside.largest || !dladdr(code, &found)) return;
    outside.largest = bytes;
    outside.file = found.dli_fname; /* the loader's own, valid as long as the library is loaded */
}

size_t null_outside_bytes(void) { return outside.peak_bytes; }
const char *null_outside_file(void) { return outside.file ? outside.file : ""; }

void *null_allocate(size_t bytes, const void *code) {
    if (!bytes) return NULL;
    /* The driver gives large requests whole pages of 2 MiB and cuts one of these for small requests. */
    size_t unit = bytes >= MIB ? 2 * MIB : 512, needed = rounded(bytes, unit);
    int is_outside = null_is_outside(code);
    struct block *made = NULL;
    pthread_mutex_lock(&mutex);
    if (taken + needed <= capacity() && (made = place(needed, unit, needed))) {
        taken += needed;
        made->is_outside = is_outside;
        if (is_outside) count_outside(needed, code);
    }
    void *found = made ? made->begin : NULL;
    pthread_mutex_unlock(&mutex);
    if (null_log_level() > 1) fprintf(stderr, "null GPU: allocate %zu -> %p\n", bytes, found);
    return found;
}

int null_release(void *address) {
    if (!address) return 0;
    pthread_mutex_lock(&mutex);
    struct block **link = &blocks;
    while (*link && (*link)->begin != (char *)address) link = &(*link)->next;
    struct block *found = *link;
    if (found) {
        *link = found->next;
        taken -= found->committed;
        if (found->is_outside) outside.bytes -= found->committed;
        free(found);
    }
    pthread_mutex_unlock(&mutex);
    return !found;
}

size_t null_free_bytes(void) {
    pthread_mutex_lock(&mutex);
    size_t left = shown() > taken ? shown() - taken : 0;
    pthread_mutex_unlock(&mutex);
    return left;
}

void *null_reserve_addresses(size_t bytes, size_t alignment) {
    pthread_mutex_lock(&mutex);
    struct block *made = place(rounded(bytes, 2 * MIB), alignment > 2 * MIB ? alignment : 2 * MIB, 0);
    pthread_mutex_unlock(&mutex);
    return made ? made->begin : NULL;
}

int null_commit(size_t bytes, int is_outside) {
    pthread_mutex_lock(&mutex);
    int is_full = taken + bytes > capacity();
    if (!is_full) {
        taken += bytes;
        if (is_outside) count_outside(bytes, NULL);
    }
    pthread_mutex_unlock(&mutex);
    return is_full;
}

void null_uncommit(size_t bytes, int is_outside) {
    pthread_mutex_lock(&mutex);
    taken -= bytes;
    if (is_outside) outside.bytes -= bytes;
    pthread_mutex_unlock(&mutex);
}

int null_is_device(const void *address) {
    return arena_end && (const char *)address < arena_end && (const char *)address >= arena_end - (ARENA_BYTES - 4 * MIB);
}

size_t null_allocation_of(const void *address, void **base) {
    size_t bytes = 0;
    pthread_mutex_lock(&mutex);
    for (struct block *b = blocks; b; b = b->next) {
        if ((const char *)address < b->begin || (const char *)address >= b->begin + b->bytes) continue;
        *base = b->begin;
        bytes = b->bytes;
        break;
    }
    pthread_mutex_unlock(&mutex);
    return bytes;
}

static void pin(void *address, size_t bytes, int is_managed) {
    struct pinned *made = malloc(sizeof *made);
    if (!made) return;
    pthread_mutex_lock(&mutex);
    *made = (struct pinned){address, bytes, is_managed, pins};
    pins = made;
    if (is_managed && (managed += bytes) > managed_peak) managed_peak = managed;
    pthread_mutex_unlock(&mutex);
}

void null_pin(void *address, size_t bytes) { pin(address, bytes, 0); }

static void *new_pages(size_t bytes, int is_managed) {
    void *address = NULL;
    if (posix_memalign(&address, 4096, bytes ? bytes : 1)) return NULL;
    pin(address, bytes, is_managed);
    return address;
}

void *null_pin_new(size_t bytes) { return new_pages(bytes, 0); }
void *null_manage(size_t bytes) { return bytes ? new_pages(bytes, 1) : NULL; }

void null_unpin(void *address, int release) {
    pthread_mutex_lock(&mutex);
    struct pinned **link = &pins;
    while (*link && (*link)->begin != (char *)address) link = &(*link)->next;
    struct pinned *found = *link;
    if (found) *link = found->next;
    if (found && found->is_managed) managed -= found->bytes;
    pthread_mutex_unlock(&mutex);
    free(found);
    if (release) free(address);
}

static int is_in_pages(const void *address, int is_managed) {
    int is_found = 0;
    pthread_mutex_lock(&mutex);
    for (struct pinned *p = pins; p && !is_found; p = p->next)
        is_found = p->is_managed == is_managed && (const char *)address >= p->begin && (const char *)address < p->begin + p->bytes;
    pthread_mutex_unlock(&mutex);
    return is_found;
}

int null_is_pinned(const void *address) { return is_in_pages(address, 0); }
int null_is_managed(const void *address) { return is_in_pages(address, 1); }
size_t null_managed_bytes(void) { return managed_peak; }

/* Copies to the device, newest last; each is valid until the next kernel. Libraries send small tables and read them
   back, as DistributedDataParallel does with the indices of its buckets (torch/csrc/distributed/c10d/reducer.cpp). */
#define MAX_KNOWN 64
#define MAX_KNOWN_BYTES ((size_t)64 << 10)
static struct known {
    const char *begin;
    size_t bytes;
    unsigned long launches;
    char *content;
} known[MAX_KNOWN];
static unsigned newest;

static void remember(const char *to, const void *from, size_t bytes) {
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < MAX_KNOWN; i++) /* what is written over is not known any more */
        if (known[i].content && to < known[i].begin + known[i].bytes && known[i].begin < to + bytes) {
            free(known[i].content);
            known[i].content = NULL;
        }
    struct known *made = &known[newest++ % MAX_KNOWN];
    free(made->content);
    *made = (struct known){to, bytes, null_launches(), bytes <= MAX_KNOWN_BYTES ? malloc(bytes) : NULL};
    if (made->content) memcpy(made->content, from, bytes);
    pthread_mutex_unlock(&mutex);
}

int null_known(const void *from, size_t bytes, void *to) {
    const char *begin = from;
    int is_known = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < MAX_KNOWN && !is_known; i++) {
        struct known *k = &known[i];
        if (!k->content || k->launches != null_launches() || begin < k->begin || begin + bytes > k->begin + k->bytes) continue;
        memcpy(to, k->content + (begin - k->begin), bytes);
        is_known = 1;
    }
    pthread_mutex_unlock(&mutex);
    return is_known;
}

/* One answer for one thread: the next copy of so many bytes, if what is there is not known. */
#define MAX_ANSWER_BYTES 64
static __thread struct {
    size_t bytes;
    char content[MAX_ANSWER_BYTES];
} answer;

void null_answer(const void *content, size_t bytes) {
    answer.bytes = bytes <= MAX_ANSWER_BYTES ? bytes : 0;
    memcpy(answer.content, content, answer.bytes);
}

static int take_answer(void *to, size_t bytes) {
    if (!answer.bytes || answer.bytes != bytes) return 0;
    memcpy(to, answer.content, bytes);
    answer.bytes = 0;
    return 1;
}

void null_copy(void *to, const void *from, size_t bytes) {
    int to_device = null_is_device(to), from_device = null_is_device(from);
    if (to_device && from_device) null_count_launch(); /* a copy on the device is not followed */
    else if (to_device) remember(to, from, bytes);
    else if (!from_device) memcpy(to, from, bytes);
    else if (!null_known(from, bytes, to) && !take_answer(to, bytes)) memset(to, 0, bytes);
}
