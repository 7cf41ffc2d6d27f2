/* Properties of the null GPU, from the environment: COTENANT_NULL_GPU="name=...;compute_major=8;...". */
#define _GNU_SOURCE
#include "null_gpu.h"

#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct null_gpu gpu;
static int log_level;
static unsigned long launches, foreign_launches, stubs;

static const struct {
    const char *key;
    size_t offset;
    int is_size;
} members[] = {
#define INT(member) {#member, offsetof(struct null_gpu, member), 0}
#define SIZE(member) {#member, offsetof(struct null_gpu, member), 1}
    INT(compute_major), INT(compute_minor), INT(sm_count), INT(threads_per_sm), INT(blocks_per_sm),
    INT(shared_bytes_per_sm), INT(shared_bytes_per_block_optin), INT(l2_bytes), INT(memory_bus_bits),
    INT(sm_clock_khz), INT(memory_clock_khz), SIZE(total_bytes), SIZE(context_bytes), SIZE(limit_bytes), INT(device_count),
};

static void set_member(const char *key, const char *value) {
    if (!strcmp(key, "name")) {
        snprintf(gpu.name, sizeof gpu.name, "%s", value);
        return;
    }
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (strcmp(members[i].key, key)) continue;
        char *member = (char *)&gpu + members[i].offset;
        if (members[i].is_size) *(size_t *)member = strtoull(value, NULL, 10);
        else *(int *)member = atoi(value);
        return;
    }
    fprintf(stderr, "null GPU: unknown property `%s`\n", key);
    abort();
}

static void read_environment(void) {
    const char *level = getenv("COTENANT_NULL_GPU_LOG");
    log_level = level ? atoi(level) : 0;
    const char *text = getenv("COTENANT_NULL_GPU");
    if (!text) {
        fprintf(stderr, "null GPU: COTENANT_NULL_GPU is not set; start the process through cotenant.nullgpu\n");
        abort();
    }
    char *copy = strdup(text), *rest = copy, *item;
    while ((item = strsep(&rest, ";"))) {
        char *value = strchr(item, '=');
        if (!value) continue;
        *value = 0;
        set_member(item, value + 1);
    }
    free(copy);
}

const struct null_gpu *null_gpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
    return &gpu;
}

int null_device_count(void) { return null_gpu()->device_count > 0 ? null_gpu()->device_count : 1; }

int null_log_level(void) {
    null_gpu();
    return log_level;
}

void null_count_launch(void) { __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED); }
unsigned long null_launches(void) { return __atomic_load_n(&launches, __ATOMIC_RELAXED) + stubs; }

/* Address ranges of PyTorch's libraries: those with kernels, libtorch_cuda.so and what its name begins, and that of the
   caching allocator, which calls the driver alone. */
#define MAX_RANGES 64
static struct ranges {
    const char *prefix;
    int count;
    struct {
        uintptr_t begin, end;
    } found[MAX_RANGES];
} kernels = {.prefix = "/libtorch_cuda"}, allocator = {.prefix = "/libc10_cuda"};

static int add_ranges(struct dl_phdr_info *info, size_t size, void *data) {
    struct ranges *ranges = data;
    const char *name = strrchr(info->dlpi_name, '/');
    if (!name || strncmp(name, ranges->prefix, strlen(ranges->prefix))) return 0;
    for (int i = 0; i < info->dlpi_phnum && ranges->count < MAX_RANGES; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        ranges->found[ranges->count].begin = begin;
        ranges->found[ranges->count++].end = begin + info->dlpi_phdr[i].p_memsz;
    }
    return 0;
}

/* A library may allocate before torch is loaded, so that PyTorch's are looked for until they are there. */
static int is_in(struct ranges *ranges, const void *code) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    if (!ranges->count) dl_iterate_phdr(add_ranges, ranges);
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < ranges->count; i++)
        if ((uintptr_t)code >= ranges->found[i].begin && (uintptr_t)code < ranges->found[i].end) return 1;
    return 0;
}

void null_launch(const void *code) {
    null_count_launch();
    if (!is_in(&kernels, code)) __atomic_add_fetch(&foreign_launches, 1, __ATOMIC_RELAXED);
}
int null_is_outside(const void *code) { return !is_in(&allocator, code); }
unsigned long null_foreign_launches(void) { return __atomic_load_n(&foreign_launches, __ATOMIC_RELAXED); }

void *null_object(size_t bytes) { return calloc(1, bytes); }

/* Whether a stub stands for work on the device, after which nothing there is known. */
static int writes(const char *name) {
    int is_of_matrices = !strncmp(name, "cublas", 6) || !strncmp(name, "cusolver", 8) || !strncmp(name, "cusparse", 8);
    return is_of_matrices || strstr(name, "Launch") || strstr(name, "Memset") || strstr(name, "Memcpy");
}

long null_stub(const char *name) {
    static const char *seen[4096];
    static int count;
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    if (writes(name)) __atomic_add_fetch(&stubs, 1, __ATOMIC_RELAXED);
    if (!null_log_level()) return 0;
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (i < count && seen[i] != name) i++; /* each stub passes one constant, so addresses tell them apart */
    if (i == count && count < 4096) {
        seen[count++] = name;
        fprintf(stderr, "null GPU: stub %s\n", name);
    }
    pthread_mutex_unlock(&mutex);
    return 0;
}

int null_attribute(int attribute) {
    const struct null_gpu *g = null_gpu();
    switch (attribute) { /* numbers of enum cudaDeviceAttr, driver_types.h */
    case 1: return 1024;                        /* MaxThreadsPerBlock */
    case 2: case 3: return 1024;                /* MaxBlockDimX, Y */
    case 4: return 64;                          /* MaxBlockDimZ */
    case 5: return 2147483647;                  /* MaxGridDimX */
    case 6: case 7: return 65535;               /* MaxGridDimY, Z */
    case 8: return 49152;                       /* MaxSharedMemoryPerBlock */
    case 9: return 65536;                       /* TotalConstantMemory */
    case 10: return 32;                         /* WarpSize */
    case 11: return 2147483647;                 /* MaxPitch */
    case 12: return 65536;                      /* MaxRegistersPerBlock */
    case 13: return g->sm_clock_khz;            /* ClockRate */
    case 14: return 512;                        /* TextureAlignment */
    case 15: return 1;                          /* GpuOverlap */
    case 16: return g->sm_count;                /* MultiProcessorCount */
    case 19: return 1;                          /* CanMapHostMemory */
    case 30: return 512;                        /* SurfaceAlignment */
    case 31: return 1;                          /* ConcurrentKernels */
    case 33: return 1;                          /* PciBusId */
    case 36: return g->memory_clock_khz;        /* MemoryClockRate */
    case 37: return g->memory_bus_bits;         /* GlobalMemoryBusWidth */
    case 38: return g->l2_bytes;                /* L2CacheSize */
    case 39: return g->threads_per_sm;          /* MaxThreadsPerMultiProcessor */
    case 40: return 3;                          /* AsyncEngineCount */
    case 41: return 1;                          /* UnifiedAddressing */
    case 51: return 32;                         /* TexturePitchAlignment */
    case 75: return g->compute_major;           /* ComputeCapabilityMajor */
    case 76: return g->compute_minor;           /* ComputeCapabilityMinor */
    case 78: case 79: case 80: return 1;        /* StreamPriorities, GlobalL1, LocalL1 */
    case 81: return g->shared_bytes_per_sm;     /* MaxSharedMemoryPerMultiprocessor */
    case 82: return 65536;                      /* MaxRegistersPerMultiprocessor */
    case 83: return 1;                          /* ManagedMemory */
    case 87: return 2;                          /* SingleToDoublePrecisionPerfRatio */
    case 89: case 90: case 91: return 1;        /* ConcurrentManagedAccess, ComputePreemption, HostPointer */
    case 95: return 1;                          /* CooperativeLaunch */
    case 97: return g->shared_bytes_per_block_optin; /* MaxSharedMemoryPerBlockOptin */
    case 99: return 1;                          /* HostRegisterSupported */
    case 102: return 1;                         /* VirtualMemoryManagementSupported: expandable segments ask it */
    case 103: return 1;                         /* HandleTypePosixFileDescriptorSupported */
    case 106: return g->blocks_per_sm;          /* MaxBlocksPerMultiprocessor */
    case 111: return 1024;                      /* ReservedSharedMemoryPerBlock */
    case 115: return 1;                         /* MemoryPoolsSupported */
    case 119: return 1;                         /* MemoryPoolSupportedHandleTypes */
    case 120: return g->compute_major >= 9;     /* ClusterLaunch */
    case 125: return 1;                         /* IpcEventSupport */
    default: return 0;
    }
}

__attribute__((destructor)) static void report(void) {
    if (log_level) fprintf(stderr, "null GPU: %lu launches\n", launches);
}
