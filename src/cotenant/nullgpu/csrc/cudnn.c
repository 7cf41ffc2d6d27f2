/* In front of the job's own libcudnn.so.9, unchanged: its heuristics choose plans and say their workspaces.

   A handle needs a device, so handles are ours and are not passed on. From cuDNN 9.8 on, heuristics and plans take the
   properties of a device in place of a handle (cudnn_graph.h, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR): they are set before
   such a descriptor is finalized. Plans are not executed. Functions that are not here go straight to the real library. */
#define _GNU_SOURCE
#include "null_gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

void *null_real_function(const char *name); /* made by build.py */

typedef int Status;
#define SUCCESS 0
#define STATUS_SUBLIBRARY 5003 /* RNN sizes are filled in all the same */

enum { /* cudnnBackendDescriptorType_t */ ENGINE = 2, HEURISTICS = 4, PLAN = 5, DEVICE_PROPERTIES = 38 };
enum { /* cudnnBackendAttributeName_t */
       HEURISTICS_DEVICE = 204, PLAN_WORKSPACE = 402, PLAN_DEVICE = 407, ENGINE_DEVICE = 1307, DEVICE_JSON = 2702 };
enum { /* cudnnBackendAttributeType_t */ TYPE_HANDLE = 0, TYPE_DESCRIPTOR = 15, TYPE_CHAR = 24 };

#define REAL(name, ...)                                            \
    static Status (*real)(__VA_ARGS__);                            \
    if (!real) real = (Status(*)(__VA_ARGS__))null_real_function(name)

static Status create(int type, void **descriptor) {
    REAL("cudnnBackendCreateDescriptor", int, void **);
    return real(type, descriptor);
}
static Status set(void *descriptor, int attribute, int type, int64_t count, const void *values) {
    REAL("cudnnBackendSetAttribute", void *, int, int, int64_t, const void *);
    return real(descriptor, attribute, type, count, values);
}
static Status finalize(void *descriptor) {
    REAL("cudnnBackendFinalize", void *);
    return real(descriptor);
}

/* The type of each live descriptor, for cuDNN does not tell it. */
struct known {
    void *descriptor;
    int type;
    struct known *next;
};
static struct known *known[65536];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct known **slot(void *descriptor) {
    struct known **link = &known[((uintptr_t)descriptor >> 4) % 65536];
    while (*link && (*link)->descriptor != descriptor) link = &(*link)->next;
    return link;
}
static int type_of(void *descriptor) {
    pthread_mutex_lock(&mutex);
    struct known *found = *slot(descriptor);
    int type = found ? found->type : -1;
    pthread_mutex_unlock(&mutex);
    return type;
}

static void *device_properties;

static void make_device_properties(void) {
    const struct null_gpu *g = null_gpu();
    char json[4096];
    int length = snprintf(
        json, sizeof json,
        "{\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,\"runtimeVer\":13000,\"maxGridSize\":[2147483647,65535,65535],"
        "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"smCountOrigin\":0,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,\"oversizedSharedMemoryPerBlock\":0,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,"
        "\"maxThreadsPerSM\":%d,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":%d,"
        "\"memClockRateKHz\":%d,\"memoryBusWidth\":%d,\"l2CacheSize\":%d,\"totalGlobalMem\":%zu,\"deviceName\":\"%s\"}",
        g->compute_major * 100 + g->compute_minor * 10, g->sm_count, g->shared_bytes_per_block_optin, g->blocks_per_sm, g->threads_per_sm,
        g->sm_clock_khz, g->memory_clock_khz, g->memory_bus_bits, g->l2_bytes, g->total_bytes, g->name);
    if (create(DEVICE_PROPERTIES, &device_properties) || set(device_properties, DEVICE_JSON, TYPE_CHAR, length, json) ||
        finalize(device_properties)) {
        fprintf(stderr, "null GPU: this cuDNN takes no device properties, wanted 9.8 or newer\n");
        abort();
    }
}

Status cudnnCreate(void **handle) { *handle = null_object(65536); return SUCCESS; }
Status cudnnDestroy(void *handle) { free(handle); return SUCCESS; }
Status cudnnSetStream(void **handle, void *stream) { handle[0] = stream; return SUCCESS; }
Status cudnnGetStream(void **handle, void **stream) { *stream = handle[0]; return SUCCESS; }

Status cudnnBackendCreateDescriptor(int type, void **descriptor) {
    Status status = create(type, descriptor);
    if (status) return status;
    pthread_mutex_lock(&mutex);
    struct known **link = slot(*descriptor);
    if (!*link) *link = null_object(sizeof **link);
    (*link)->descriptor = *descriptor;
    (*link)->type = type;
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}
Status cudnnBackendDestroyDescriptor(void *descriptor) {
    REAL("cudnnBackendDestroyDescriptor", void *);
    pthread_mutex_lock(&mutex);
    struct known **link = slot(descriptor), *found = *link;
    if (found) *link = found->next;
    pthread_mutex_unlock(&mutex);
    free(found);
    return real(descriptor);
}
Status cudnnBackendSetAttribute(void *descriptor, int attribute, int type, int64_t count, const void *values) {
    return type == TYPE_HANDLE ? SUCCESS : set(descriptor, attribute, type, count, values);
}
Status cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t wanted, int64_t *count, void *values) {
    REAL("cudnnBackendGetAttribute", void *, int, int, int64_t, int64_t *, void *);
    Status status = real(descriptor, attribute, type, wanted, count, values);
    if (!status && attribute == PLAN_WORKSPACE && null_log_level() > 1)
        fprintf(stderr, "null GPU: workspace %lld\n", *(long long *)values);
    return status;
}
Status cudnnBackendFinalize(void *descriptor) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int type = type_of(descriptor);
    int attribute = type == HEURISTICS ? HEURISTICS_DEVICE : type == PLAN ? PLAN_DEVICE : type == ENGINE ? ENGINE_DEVICE : 0;
    if (attribute) {
        pthread_once(&once, make_device_properties);
        set(descriptor, attribute, TYPE_DESCRIPTOR, 1, &device_properties);
    }
    Status status = finalize(descriptor);
    if (status && null_log_level()) fprintf(stderr, "null GPU: cuDNN does not finalize type %d: %d\n", type, status);
    return status;
}

/* Sizes that need a handle. Batch norm's NHWC kernels: assumed to take none. */
Status cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, void *x, void *z, void *y, void *bn,
                                                                void *activation, size_t *bytes) {
    *bytes = 0;
    return SUCCESS;
}
Status cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations, void *activation, void *x, size_t *bytes) {
    *bytes = 0;
    return SUCCESS;
}
Status cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x, void *y, void *dy, void *dz,
                                                         void *dx, void *bn, void *activation, size_t *bytes) {
    *bytes = 0;
    return SUCCESS;
}
Status cudnnDropoutGetStatesSize(void *handle, size_t *bytes) {
    *bytes = (size_t)null_gpu()->sm_count * null_gpu()->threads_per_sm * 48; /* a generator for each resident thread */
    return SUCCESS;
}
/* Seeding a dropout state runs a kernel; restoring one needs none. */
Status cudnnSetDropoutDescriptor(void *descriptor, void *handle, float dropout, void *states, size_t bytes, unsigned long long seed) {
    REAL("cudnnRestoreDropoutDescriptor", void *, void *, float, void *, size_t, unsigned long long);
    return real(descriptor, handle, dropout, states, bytes, seed);
}
Status cudnnGetRNNTempSpaceSizes(void *handle, void *rnn, int mode, void *x, size_t *workspace_bytes, size_t *reserve_bytes) {
    REAL("cudnnGetRNNTempSpaceSizes", void *, void *, int, void *, size_t *, size_t *);
    if (workspace_bytes) *workspace_bytes = 0;
    if (reserve_bytes) *reserve_bytes = 0;
    Status status = real(handle, rnn, mode, x, workspace_bytes, reserve_bytes);
    return status == STATUS_SUBLIBRARY ? SUCCESS : status;
}

/* Work, which is skipped */
Status cudnnBackendExecute(void *handle, void *plan, void *variants) { null_count_launch(); return SUCCESS; }
#define SKIPPED(function) \
    Status function(void) { null_count_launch(); return SUCCESS; }
SKIPPED(cudnnBatchNormalizationForwardTrainingEx)
SKIPPED(cudnnBatchNormalizationBackwardEx)
SKIPPED(cudnnBatchNormalizationForwardInference)
SKIPPED(cudnnConvolutionForward)
SKIPPED(cudnnConvolutionBackwardData)
SKIPPED(cudnnConvolutionBackwardFilter)
SKIPPED(cudnnConvolutionBiasActivationForward)
SKIPPED(cudnnPoolingForward)
SKIPPED(cudnnRNNForward)
SKIPPED(cudnnRNNBackwardData_v8)
SKIPPED(cudnnRNNBackwardWeights_v8)
SKIPPED(cudnnCTCLoss)
SKIPPED(cudnnCTCLoss_v8)
SKIPPED(cudnnSpatialTfGridGeneratorForward)
SKIPPED(cudnnSpatialTfGridGeneratorBackward)
SKIPPED(cudnnSpatialTfSamplerForward)
SKIPPED(cudnnSpatialTfSamplerBackward)
