/* libcudart.so: the documented runtime API (cuda_runtime_api.h), and the entry points that nvcc puts into programs.

   CUDA 12 and 13 differ in a few signatures; this file is compiled against the headers of the wheel it stands in for. */
#define _GNU_SOURCE
#include "null_gpu.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef cudaError_t Error;

static __thread Error last_error;

static Error failed(Error error) { return last_error = error; }

/* Device */
Error cudaGetDeviceCount(int *count) { *count = null_device_count(); return cudaSuccess; }
Error cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
Error cudaSetDevice(int device) { return device ? failed(cudaErrorInvalidDevice) : cudaSuccess; }
Error cudaChooseDevice(int *device, const struct cudaDeviceProp *wanted) { *device = 0; return cudaSuccess; }
Error cudaDeviceGetByPCIBusId(int *device, const char *id) { *device = 0; return cudaSuccess; }
Error cudaGetDeviceFlags(unsigned *flags) { *flags = 0; return cudaSuccess; }
Error cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
Error cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
Error cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    *value = null_attribute(attribute);
    return cudaSuccess;
}
Error cudaDeviceGetPCIBusId(char *id, int length, int device) { snprintf(id, length, "0000:01:00.0"); return cudaSuccess; }
Error cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }
Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
Error cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) { *value = 0; return cudaSuccess; }
Error cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    static char only[64];
    *pool = (cudaMemPool_t)only;
    return cudaSuccess;
}
Error cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    *(uint64_t *)value = 0;
    return cudaSuccess;
}
Error cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    const struct null_gpu *g = null_gpu();
    if (device < 0 || device >= null_device_count()) return failed(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", g->name);
    memset(&p->uuid, 0x42, sizeof p->uuid);
    ((char *)&p->uuid)[15] = NULL_UUID_LAST(device);
    p->major = g->compute_major;
    p->minor = g->compute_minor;
    p->multiProcessorCount = g->sm_count;
    p->totalGlobalMem = g->total_bytes;
    p->maxThreadsPerMultiProcessor = g->threads_per_sm;
    p->maxBlocksPerMultiProcessor = g->blocks_per_sm;
    p->sharedMemPerMultiprocessor = g->shared_bytes_per_sm;
    p->sharedMemPerBlockOptin = g->shared_bytes_per_block_optin;
    p->l2CacheSize = g->l2_bytes;
    p->memoryBusWidth = g->memory_bus_bits;
    p->clusterLaunch = g->compute_major >= 9;
    /* Equal on every GPU since compute capability 7.0: CUDA C++ Programming Guide, technical specifications. */
    p->sharedMemPerBlock = 49152;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = 2147483647;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->textureAlignment = p->surfaceAlignment = 512;
    p->texturePitchAlignment = 32;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = 1;
    p->globalL1CacheSupported = p->localL1CacheSupported = p->managedMemory = p->concurrentManagedAccess = 1;
    p->computePreemptionSupported = p->canUseHostPointerForRegisteredMem = p->cooperativeLaunch = 1;
    p->hostRegisterSupported = p->memoryPoolsSupported = p->ipcEventSupported = p->unifiedFunctionPointers = 1;
    p->pciBusID = 1;
    p->asyncEngineCount = 3;
    return cudaSuccess;
}

/* Memory */
static Error allocate(void **address, size_t bytes, const void *code) {
    *address = null_allocate(bytes, code);
    return bytes && !*address ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}
Error cudaMalloc(void **address, size_t bytes) { return allocate(address, bytes, __builtin_return_address(0)); }
Error cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
    return allocate(address, bytes, __builtin_return_address(0));
}
Error cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
    return allocate(address, bytes, __builtin_return_address(0));
}
Error cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return allocate(address, *pitch * height, __builtin_return_address(0));
}
Error cudaMallocManaged(void **address, size_t bytes, unsigned flags) {
    *address = null_manage(bytes);
    return bytes && !*address ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}
Error cudaFree(void *address) {
    if (null_is_managed(address)) null_unpin(address, 1);
    else if (null_release(address)) return failed(cudaErrorInvalidValue);
    return cudaSuccess;
}
Error cudaFreeAsync(void *address, cudaStream_t stream) { return cudaFree(address); }
Error cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *total = null_gpu()->total_bytes;
    *free_bytes = null_free_bytes();
    return cudaSuccess;
}
Error cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    *address = null_pin_new(bytes);
    return *address ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
Error cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
Error cudaFreeHost(void *address) { null_unpin(address, 1); return cudaSuccess; }
Error cudaHostRegister(void *address, size_t bytes, unsigned flags) { null_pin(address, bytes); return cudaSuccess; }
Error cudaHostUnregister(void *address) { null_unpin(address, 0); return cudaSuccess; }
Error cudaHostGetDevicePointer(void **device, void *host, unsigned flags) { *device = host; return cudaSuccess; }
Error cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address) {
    memset(found, 0, sizeof *found);
    found->type = cudaMemoryTypeUnregistered;
    found->device = -1;
    if (null_is_device(address)) {
        found->type = cudaMemoryTypeDevice;
        found->device = 0;
        found->devicePointer = (void *)address;
    } else if (null_is_managed(address)) {
        found->type = cudaMemoryTypeManaged;
        found->device = 0;
        found->devicePointer = found->hostPointer = (void *)address;
    } else {
        found->hostPointer = (void *)address;
        if (null_is_pinned(address)) {
            found->type = cudaMemoryTypeHost;
            found->device = 0;
            found->devicePointer = (void *)address;
        }
    }
    return cudaSuccess;
}
Error cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) { null_copy(to, from, bytes); return cudaSuccess; }
Error cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    null_copy(to, from, bytes);
    return cudaSuccess;
}
Error cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream) {
    null_copy(to, from, bytes);
    return cudaSuccess;
}
Error cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                        enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++)
        null_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}
Error cudaMemset(void *address, int value, size_t bytes) {
    if (null_is_device(address)) null_count_launch();
    else memset(address, value, bytes);
    return cudaSuccess;
}
Error cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t stream) { return cudaMemset(address, value, bytes); }
Error cudaGetSymbolAddress(void **address, const void *symbol) {
    static void *area;
    if (!area) area = null_reserve_addresses(1, 0);
    *address = area;
    return cudaSuccess;
}
Error cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address) { return failed(cudaErrorNotSupported); }
Error cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned flags) { return failed(cudaErrorNotSupported); }

/* Errors */
Error cudaPeekAtLastError(void) { return last_error; }
Error cudaGetLastError(void) {
    Error error = last_error;
    last_error = cudaSuccess; /* torch clears an out-of-memory error in this way before it goes on */
    return error;
}
const char *cudaGetErrorName(Error error) {
    switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
    }
}
const char *cudaGetErrorString(Error error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "error of the null GPU";
    }
}

/* Streams and events: everything has already happened */
Error cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) { *stream = null_object(64); return cudaSuccess; }
Error cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
Error cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
Error cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }
Error cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) { *flags = cudaStreamNonBlocking; return cudaSuccess; }
Error cudaStreamGetId(cudaStream_t stream, unsigned long long *id) { *id = (uintptr_t)stream; return cudaSuccess; }
Error cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}
Error cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) { function(data); return cudaSuccess; }
Error cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { *event = null_object(64); return cudaSuccess; }
Error cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
Error cudaEventDestroy(cudaEvent_t event) { free(event); return cudaSuccess; }
Error cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) { *ms = 1.0f; return cudaSuccess; }

/* CUDA graphs: the allocator must see which streams capture, and in which capture they are: what is allocated for others
   goes to other pools. A stream that waits for an event of a captured one is captured, too (CUDA C++ Programming Guide,
   cross-stream dependencies). */
#define MAX_CAPTURED 256
static pthread_mutex_t capture_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    cudaStream_t stream;
    unsigned long long id;
} captured[MAX_CAPTURED];
static int captured_count;
static unsigned long long newest_capture;

static unsigned long long capture_of(cudaStream_t stream) { /* 0: none; called with the mutex held */
    for (int i = 0; i < captured_count; i++)
        if (captured[i].stream == stream) return captured[i].id;
    return 0;
}
static unsigned long long capture_id(cudaStream_t stream) {
    pthread_mutex_lock(&capture_mutex);
    unsigned long long id = capture_of(stream);
    pthread_mutex_unlock(&capture_mutex);
    return id;
}
static enum cudaStreamCaptureStatus status_of(unsigned long long id) {
    return id ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}
static void capture(cudaStream_t stream, unsigned long long id) { /* called with the mutex held */
    if (capture_of(stream) || captured_count == MAX_CAPTURED) return;
    captured[captured_count].stream = stream;
    captured[captured_count++].id = id;
}
Error cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    pthread_mutex_lock(&capture_mutex);
    capture(stream, ++newest_capture);
    pthread_mutex_unlock(&capture_mutex);
    return cudaSuccess;
}
Error cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    pthread_mutex_lock(&capture_mutex);
    unsigned long long id = capture_of(stream);
    int kept = 0;
    for (int i = 0; i < captured_count; i++)
        if (captured[i].id != id) captured[kept++] = captured[i];
    captured_count = kept;
    pthread_mutex_unlock(&capture_mutex);
    *graph = null_object(64);
    return cudaSuccess;
}
/* An event remembers the capture of the stream that it was recorded in. */
Error cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (event) *(unsigned long long *)event = capture_id(stream);
    return cudaSuccess;
}
Error cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaEventRecord(event, stream); }
Error cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    unsigned long long id = event ? *(unsigned long long *)event : 0;
    pthread_mutex_lock(&capture_mutex);
    int is_open = 0;
    for (int i = 0; i < captured_count && !is_open; i++) is_open = captured[i].id == id;
    if (id && is_open) capture(stream, id);
    pthread_mutex_unlock(&capture_mutex);
    return cudaSuccess;
}
Error cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = status_of(capture_id(stream));
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
Error cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                               const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) {
    if (edges) *edges = NULL;
#else
Error cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                  const cudaGraphNode_t **nodes, size_t *count) {
#endif
    unsigned long long found = capture_id(stream);
    *status = status_of(found);
    if (id) *id = found;
    if (graph) *graph = (cudaGraph_t)&captured;
    if (nodes) *nodes = NULL;
    if (count) *count = 0;
    return cudaSuccess;
}
Error cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) { *made = null_object(64); return cudaSuccess; }
#if CUDART_VERSION < 13000
Error cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) { *made = null_object(64); return cudaSuccess; }
#endif
Error cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) { *count = 1; return cudaSuccess; }

/* Kernels: registered, described as ordinary ones, never run */
void **__cudaRegisterFatBinary(void *code) { static void *handle[4]; return handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread, void *block,
                            void *block_dim, void *grid_dim, int *warp) {}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_extern, size_t bytes, int is_constant, int is_global) {}
char __cudaInitModule(void **handle) { return 1; }

static __thread struct {
    dim3 grid, block;
    size_t shared_bytes;
    void *stream;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, struct CUstream_st *stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared_bytes = shared_bytes;
    pushed.stream = stream;
    return 0;
}
Error __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    *(void **)stream = pushed.stream;
    return cudaSuccess;
}
Error cudaGetKernel(cudaKernel_t *kernel, const void *function) { *kernel = (cudaKernel_t)function; return cudaSuccess; }
Error __cudaGetKernel(cudaKernel_t *kernel, const void *function) { return cudaGetKernel(kernel, function); }
Error cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream) {
    null_launch(function);
    return cudaSuccess;
}
Error __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream) {
    null_launch(kernel);
    return cudaSuccess;
}
Error cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream) {
    null_launch(function);
    return cudaSuccess;
}
Error cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    null_launch(function);
    return cudaSuccess;
}
Error cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    found->numRegs = 32;
    found->maxDynamicSharedSizeBytes = 49152;
    /* torch compares these with the GPU's own capability, ten times the version. */
    found->ptxVersion = found->binaryVersion = null_gpu()->compute_major * 10 + null_gpu()->compute_minor;
    return cudaSuccess;
}
Error cudaFuncGetName(const char **name, const void *function) { *name = "kernel"; return cudaSuccess; }
/* Blocks of a kernel with few registers: limited by threads, by blocks and by shared memory of an SM. */
Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads, size_t shared_bytes, unsigned flags) {
    const struct null_gpu *g = null_gpu();
    int warps = threads > 0 ? (threads + 31) / 32 : 1;
    int fitting = g->threads_per_sm / (32 * warps);
    int by_shared = g->shared_bytes_per_sm / (int)(shared_bytes + 1024);
    if (fitting > g->blocks_per_sm) fitting = g->blocks_per_sm;
    if (fitting > by_shared) fitting = by_shared;
    *blocks = fitting > 0 ? fitting : 1;
    return cudaSuccess;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}
Error cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *function, int blocks, int threads) {
    *bytes = null_gpu()->shared_bytes_per_block_optin;
    return cudaSuccess;
}
Error cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const cudaLaunchConfig_t *config) {
    *clusters = null_gpu()->sm_count;
    return cudaSuccess;
}
Error cudaOccupancyMaxPotentialClusterSize(int *size, const void *function, const cudaLaunchConfig_t *config) { *size = 8; return cudaSuccess; }
#if CUDART_VERSION >= 12080
Error cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values, unsigned count,
                          enum cudaLibraryOption *more, void **more_values, unsigned more_count) {
    *library = null_object(64);
    return cudaSuccess;
}
Error cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) { *kernel = null_object(64); return cudaSuccess; }
#endif

/* The way from the runtime to the driver */
Error cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                       enum cudaDriverEntryPointQueryResult *status) {
    int is_missing = null_driver_function(name, function);
    if (status) *status = is_missing ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
Error cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
